/* Points: values as keys of one total order over all families, and their conversion from Python.
 *
 * Numbers are int64 and float64 together, compared exactly: a number is its nearest double plus
 * the small remainder of an int64. Timestamps are microseconds, stored the same way. Text is UTF-8
 * and ordered by bytes, which is the order of code points.
 */
#ifndef MOTET_POINT_H
#define MOTET_POINT_H

#include "common.h"

enum { BOOL, NUMBER, TEXT, TIME, FAMILIES, NAN_KIND = FAMILIES };

typedef struct {
    union {
        double number;
        const char *text; /* NULL: after all text */
    };
    int32_t fine; /* the rest of a number, or the length of a text */
    uint8_t family;
} Point;

#define TWO_63 9223372036854775808.0
#define TWO_53 9007199254740992.0

static inline Point
scalar(int family, double number, int32_t fine)
{
    return (Point){.number = number + 0.0, .fine = fine, .family = (uint8_t)family}; /* no -0.0 */
}

static inline Point
scalar_from_int(int family, int64_t value)
{
    double near = (double)value;
    int64_t rest = near == TWO_63 ? value - INT64_MAX - 1 : value - (int64_t)near;
    return scalar(family, near, (int32_t)rest);
}

static inline Point
text_point(const char *text, size_t size)
{
    return (Point){.text = text, .fine = (int32_t)size, .family = TEXT};
}

/* The least point of a family, and the point after all of it. */
static inline Point
family_start(int family)
{
    return family == TEXT ? text_point("", 0) : scalar(family, family ? -INFINITY : 0, 0);
}

static inline Point
family_end(int family)
{
    return family == TEXT   ? text_point(NULL, 0)
           : family == BOOL ? scalar(BOOL, 2, 0)
                            : scalar(family, INFINITY, 1);
}

static inline bool
scalar_less(Point a, Point b)
{
    return a.number < b.number || (a.number == b.number && a.fine < b.fine);
}

static inline int
text_compare(Point a, Point b)
{
    if (a.text == NULL || b.text == NULL) {
        return (a.text == NULL) - (b.text == NULL);
    }
    uint32_t shared = (uint32_t)(a.fine < b.fine ? a.fine : b.fine);
    int order = memcmp(a.text, b.text, shared);
    return order != 0 ? order : (a.fine > b.fine) - (a.fine < b.fine);
}

static inline bool
point_less(Point a, Point b)
{
    if (a.family != b.family) {
        return a.family < b.family;
    }
    return a.family == TEXT ? text_compare(a, b) < 0 : scalar_less(a, b);
}

static inline bool
point_equal(Point a, Point b)
{
    if (a.family != b.family || a.fine != b.fine) {
        return false;
    }
    if (a.family != TEXT) {
        return a.number == b.number;
    }
    return text_compare(a, b) == 0;
}

static uint64_t
point_hash(Point point)
{
    if (point.family == TEXT) {
        return hash_bytes(point.text, (size_t)point.fine);
    }
    uint64_t bits;
    memcpy(&bits, &point.number, sizeof bits);
    return hash_word(bits + (uint64_t)(int64_t)point.fine * 31 + point.family);
}

/* The least scalar above this one; no other int64 or float64 lies between them. */
static Point
scalar_next(Point point)
{
    double near = point.number;
    if (point.family != NUMBER) { /* BOOL, TIME: whole numbers only */
        if (isinf(near)) { /* unbounded: it has no successor */
            return point;
        }
        int64_t whole = (int64_t)near + point.fine;
        return scalar_from_int(point.family, whole + 1);
    }
    if (isinf(near) && near > 0) {
        return family_end(NUMBER);
    }
    if (fabs(near) < TWO_53 || near < -TWO_63 || near > TWO_63 ||
        (near == TWO_63 && point.fine == 0)) {
        return scalar(NUMBER, nextafter(near, INFINITY), 0);
    }
    int64_t whole = near == TWO_63 ? INT64_MAX + (point.fine + 1) : (int64_t)near + point.fine;
    return whole == INT64_MAX ? scalar(NUMBER, TWO_63, 0) : scalar_from_int(NUMBER, whole + 1);
}

/* ── from Python ──────────────────────────────────────────────────────────────────────── */

static int64_t
days_from_civil(int year, int month, int day)
{
    year -= month <= 2;
    int64_t era = (year >= 0 ? year : year - 399) / 400;
    int64_t year_of_era = year - era * 400;
    int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    return era * 146097 + day_of_era - 719468;
}

#define FIRST_US (-62135596800000000)
#define LAST_US 253402300799999999

/* A datetime in UTC as microseconds since 1970. */
static bool
read_time(PyObject *value, int64_t *microseconds)
{
    PyObject *zone = PyDateTime_DATE_GET_TZINFO(value);
    if (zone != PyDateTime_TimeZone_UTC) {
        PyErr_SetString(PyExc_TypeError, "a datetime must be in datetime.timezone.utc");
        return false;
    }
    int64_t days = days_from_civil(PyDateTime_GET_YEAR(value), PyDateTime_GET_MONTH(value),
                                   PyDateTime_GET_DAY(value));
    int64_t seconds = days * 86400 + PyDateTime_DATE_GET_HOUR(value) * 3600 +
                      PyDateTime_DATE_GET_MINUTE(value) * 60 + PyDateTime_DATE_GET_SECOND(value);
    *microseconds = seconds * 1000000 + PyDateTime_DATE_GET_MICROSECOND(value);
    return true;
}

static inline bool
read_text(PyObject *value, Point *point)
{
    if (PyUnicode_IS_COMPACT_ASCII(value) && PyUnicode_GET_LENGTH(value) < INT32_MAX) {
        *point = text_point(PyUnicode_DATA(value), (size_t)PyUnicode_GET_LENGTH(value));
        return true;
    }
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(value, &size);
    if (text == NULL) {
        return false;
    }
    if (size >= INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a text is too long to be matched");
        return false;
    }
    *point = text_point(text, (size_t)size);
    return true;
}

/* Any value of an event or a filter. Text is borrowed from the object. */
static bool
read_value(PyObject *value, Point *point)
{
    if (PyUnicode_Check(value)) {
        return read_text(value, point);
    }
    if (PyFloat_Check(value)) {
        double number = PyFloat_AS_DOUBLE(value);
        *point = scalar(isnan(number) ? NAN_KIND : NUMBER, number, 0);
        return true;
    }
    if (PyBool_Check(value)) {
        *point = scalar(BOOL, value == Py_True, 0);
        return true;
    }
    if (PyLong_Check(value)) {
        int overflow;
        int64_t whole = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow) {
            PyErr_SetString(PyExc_OverflowError, "an int of an event must fit into 64 bits");
            return false;
        }
        *point = scalar_from_int(NUMBER, whole);
        return true;
    }
    if (PyDateTime_Check(value)) {
        int64_t microseconds;
        if (!read_time(value, &microseconds)) {
            return false;
        }
        *point = scalar_from_int(TIME, microseconds);
        return true;
    }
    PyErr_Format(PyExc_TypeError, "a %.100s is no value of an event", Py_TYPE(value)->tp_name);
    return false;
}

#endif
