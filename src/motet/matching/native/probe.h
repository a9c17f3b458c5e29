/* Probes: compact copies of clauses for matching events, so that survivors cost few cache misses.
 *
 * Each value has a key of 64 bits, in the order of the points of its family. Different points may
 * share a key; a key of only one point is called exact. A check tests whether a key lies in a
 * range. If the key equals an end of the range and either is not exact, the clause itself decides:
 * this is rare, except for texts with a common prefix.
 */
#ifndef MOTET_PROBE_H
#define MOTET_PROBE_H

#include "clause.h"

enum {
    KIND_ABSENT = 0, /* other kinds are 1 + the family; see KIND_OF */
    KEY_BYTES = 7,   /* of a text; the last byte of its key is for the length */
    MOST_RANGES = 8, /* tried one by one; beyond, the clause itself decides faster */
};

#define KIND_OF(family) ((uint8_t)(1 + (family)))

/* The value of an attribute in an event. Absent is all zero. */
typedef struct {
    uint64_t key;
    uint8_t kind;
    bool inexact;
} Said;

typedef struct {
    uint64_t low, span; /* the keys from low to low + span */
    uint32_t attribute;
    uint8_t kind;
    bool inexact; /* an end is */
    bool more;    /* the next check is an alternative for the same attribute */
} Check;

struct Probe {
    int64_t key; /* this and the next fields as in the clause */
    Clause *clause;
    uint32_t hop;
    uint16_t count;
    bool in_union;
    bool is_vague; /* no checks: ask the clause */
    Check checks[];
};

/* The first bytes of a text as a number, in the order of bytes. */
static inline uint64_t
text_start(Point text)
{
    uint64_t start = 0;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (text.fine > KEY_BYTES) {
        memcpy(&start, text.text, sizeof start);
        return __builtin_bswap64(start) >> 8;
    }
#endif
    int32_t size = text.fine < KEY_BYTES ? text.fine : KEY_BYTES;
    for (int32_t i = 0; i < size; i++) {
        start |= (uint64_t)(unsigned char)text.text[i] << (48 - 8 * i);
    }
    return start;
}

static inline uint64_t
text_key(uint64_t start, int32_t length)
{
    /* With a common prefix and zero padding, the shorter text comes first. */
    return start << 8 | (uint64_t)(length > KEY_BYTES ? KEY_BYTES + 1 : length);
}

static inline uint64_t
scalar_key(double number)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits >> 63 ? ~bits : bits | UINT64_C(1) << 63;
}

/* The key of any point except NaN, and whether no other point of the family has it. */
static inline uint64_t
key_of(Point point, bool *inexact)
{
    if (point.family == TEXT) {
        *inexact = point.fine > KEY_BYTES;
        return point.text != NULL ? text_key(text_start(point), point.fine)
                                  : UINT64_MAX; /* 0xff begins no UTF-8 */
    }
    *inexact = point.fine != 0;
    return scalar_key(point.number);
}

/* Whether the ends of an interval share a key: no key lies within, and the ends are not exact. */
static bool
has_key_in_common(const Interval *interval)
{
    bool inexact;
    return key_of(interval->low, &inexact) == key_of(interval->high, &inexact);
}

static uint32_t
checks_of(const Clause *clause, const Constraint *constraint, Check *checks)
{
    Check *next = checks;
    uint32_t attribute = constraint->attribute;
    if (constraint->absent) {
        *next++ = (Check){0, UINT64_MAX, attribute, KIND_ABSENT, false, true};
    }
    if (constraint->nan) {
        *next++ = (Check){0, UINT64_MAX, attribute, KIND_OF(NAN_KIND), false, true};
    }
    for (uint32_t i = 0; i < constraint->count; i++) {
        const Interval *interval = &intervals_of(clause, constraint)[i];
        bool low_inexact, high_inexact;
        uint64_t low = key_of(interval->low, &low_inexact);
        uint64_t high = key_of(interval->high, &high_inexact);
        *next++ = (Check){low, high - low, attribute, KIND_OF(interval->low.family),
                          low_inexact || high_inexact, true};
    }
    next[-1].more = false; /* there is at least one, because the clause can match */
    return (uint32_t)(next - checks);
}

/* Creates the probe of a clause. False without memory. */
static bool
probe_new(Clause *clause)
{
    size_t count = 0;
    bool is_vague = false;
    for (uint32_t i = 0; i < clause->count; i++) {
        const Constraint *constraint = &clause->constraints[i];
        count += constraint->count + constraint->absent + constraint->nan;
        is_vague = is_vague || constraint->count > MOST_RANGES;
        for (uint32_t j = 0; j < constraint->count && !is_vague; j++) {
            is_vague = has_key_in_common(&intervals_of(clause, constraint)[j]);
        }
    }
    is_vague = is_vague || count > UINT16_MAX;
    count = is_vague ? 0 : count;
    Probe *probe = PyMem_Malloc(sizeof(Probe) + count * sizeof(Check));
    if (probe == NULL) {
        return false;
    }
    *probe = (Probe){.clause = clause, .is_vague = is_vague};
    for (uint32_t i = 0; i < clause->count && !is_vague; i++) {
        uint32_t made = checks_of(clause, &clause->constraints[i], probe->checks + probe->count);
        probe->count = (uint16_t)(probe->count + made);
    }
    clause->probe = probe;
    clause->is_vague = is_vague;
    return true;
}

typedef enum { NO, YES, PERHAPS } Verdict;

/* Whether the clause matches, given the event's value of each attribute. */
static inline Verdict
probe_event(const Probe *probe, const Said *saids)
{
    if (probe->is_vague) {
        return PERHAPS;
    }
    const Check *check = probe->checks, *end = check + probe->count;
    for (; check < end; check++) {
        const Said *said = &saids[check->attribute];
        uint64_t above = said->key - check->low;
        if (above <= check->span && said->kind == check->kind) {
            bool at_end = above == 0 || above == check->span;
            if (at_end && (said->inexact || check->inexact)) {
                return PERHAPS;
            }
            if (above < check->span) {
                while (check->more) {
                    check++;
                }
                continue;
            }
        }
        if (!check->more) {
            return NO;
        }
    }
    return YES;
}

#endif
