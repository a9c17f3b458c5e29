#!/bin/sh
# Install the event services that tests need and pip does not have. Nothing is started, now or when
# the machine starts. Where it cannot install, it says what is missing: those tests fail.
set -u
missing=
for each in mosquitto redis-server rabbitmq-server; do
    PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v "$each" >/dev/null 2>&1 || missing="$missing $each"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "Some tests will fail, because these are missing:$missing"
    echo "On Debian or Ubuntu: sudo apt-get install --no-install-recommends$missing"
    exit 1
fi
echo "Event services for tests: installing$missing"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    # what packages ask before they start their service
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
fi
ended=0
apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null || {
    echo "The installation has failed, so some tests will fail, too."
    ended=1
}
if command -v systemctl >/dev/null 2>&1; then
    for each in $missing; do systemctl disable -q "$each" >/dev/null 2>&1; done
fi
exit $ended
