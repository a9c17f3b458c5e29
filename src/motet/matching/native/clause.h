/* Clauses: a conjunction of constraints, compiled from Python into one piece of memory.
 *
 * A constraint is a set of values in canonical form: half-open intervals [low, high), sorted,
 * disjoint and not adjacent. Membership, overlap and inclusion are therefore exact comparisons of
 * ends. Constraints that allow everything are omitted, and clauses that allow nothing are not
 * compiled.
 */
#ifndef MOTET_CLAUSE_H
#define MOTET_CLAUSE_H

#include "point.h"

#define UNKNOWN UINT32_MAX /* an attribute that no filter in the index constrains */

typedef struct {
    Point low, high;
} Interval;

typedef struct {
    uint32_t attribute;
    uint32_t first; /* of the clause's intervals */
    uint32_t count;
    bool absent;
    bool nan;
    bool is_point; /* exactly one value */
} Constraint;

typedef struct Entry Entry;
typedef struct Home Home;
typedef struct Block Block;
typedef struct Probe Probe;

typedef struct Clause {
    Entry *entry;
    Home *home;
    Block *block; /* NULL: loose in its home */
    Probe *probe; /* for matching events; owned; NULL for the filter of a query */
    struct Clause *next, *previous; /* among the loose ones of its home */
    int64_t key;                    /* … of its entry, like the hop: copies for fast access */
    uint32_t hop;
    bool in_union; /* its filter has several clauses */
    bool is_vague; /* its probe cannot decide whether it matches */
    uint32_t slot; /* in its block */
    uint32_t count;
    Constraint constraints[];
} Clause;

static inline const Interval *
intervals_of(const Clause *clause, const Constraint *constraint)
{
    return (const Interval *)(clause->constraints + clause->count) + constraint->first;
}

/* ── sets of values ───────────────────────────────────────────────────────────────────── */

static inline bool
interval_holds(const Interval *interval, Point point)
{
    if (interval->low.family != point.family) {
        return false;
    }
    if (point.family == TEXT) {
        return text_compare(interval->low, point) <= 0 && text_compare(point, interval->high) < 0;
    }
    return !scalar_less(point, interval->low) && scalar_less(point, interval->high);
}

static bool
intervals_hold(const Interval *intervals, uint32_t count, Point point)
{
    if (count == 1) {
        return interval_holds(intervals, point);
    }
    uint32_t from = 0; /* how many have low <= point */
    for (uint32_t to = count; from < to;) {
        uint32_t middle = from + (to - from) / 2;
        if (point_less(point, intervals[middle].low)) {
            to = middle;
        }
        else {
            from = middle + 1;
        }
    }
    return from > 0 && point_less(point, intervals[from - 1].high);
}

static inline bool
constraint_holds(const Clause *clause, const Constraint *constraint, Point point)
{
    if (point.family == NAN_KIND) {
        return constraint->nan;
    }
    return intervals_hold(intervals_of(clause, constraint), constraint->count, point);
}

static bool
constraints_meet(const Clause *clause, const Constraint *one, const Clause *other,
                 const Constraint *two)
{
    if ((one->absent && two->absent) || (one->nan && two->nan)) {
        return true;
    }
    const Interval *a = intervals_of(clause, one), *last_a = a + one->count;
    const Interval *b = intervals_of(other, two), *last_b = b + two->count;
    while (a < last_a && b < last_b) {
        if (point_less(a->low, b->high) && point_less(b->low, a->high)) {
            return true;
        }
        if (point_less(a->high, b->high)) {
            a++;
        }
        else {
            b++;
        }
    }
    return false;
}

static bool
constraint_within(const Clause *clause, const Constraint *inner, const Clause *other,
                  const Constraint *outer)
{
    if ((inner->absent && !outer->absent) || (inner->nan && !outer->nan)) {
        return false;
    }
    const Interval *a = intervals_of(clause, inner), *last_a = a + inner->count;
    const Interval *b = intervals_of(other, outer), *last_b = b + outer->count;
    for (; a < last_a; a++) {
        while (b < last_b && point_less(b->high, a->high)) {
            b++;
        }
        if (b == last_b || point_less(a->low, b->low)) {
            return false;
        }
    }
    return true;
}

/* Constraints are sorted by attribute, unknown ones last. */

static bool
clauses_meet(const Clause *one, const Clause *two)
{
    uint32_t i = 0, j = 0;
    while (i < one->count && j < two->count) {
        const Constraint *a = &one->constraints[i], *b = &two->constraints[j];
        if (a->attribute == b->attribute && a->attribute != UNKNOWN &&
            !constraints_meet(one, a, two, b)) {
            return false;
        }
        i += a->attribute <= b->attribute;
        j += b->attribute <= a->attribute;
    }
    return true;
}

/* Whether `outer` allows everything that `inner` allows. An unknown attribute in `inner` is
 * harmless; in `outer` the answer is no, because its constraint does not allow everything. */
static bool
clause_within(const Clause *inner, const Clause *outer)
{
    uint32_t i = 0;
    for (uint32_t j = 0; j < outer->count; j++) {
        const Constraint *b = &outer->constraints[j];
        while (i < inner->count && inner->constraints[i].attribute < b->attribute) {
            i++;
        }
        if (b->attribute == UNKNOWN || i == inner->count ||
            inner->constraints[i].attribute != b->attribute ||
            !constraint_within(inner, &inner->constraints[i], outer, b)) {
            return false;
        }
    }
    return true;
}

/* ── from Python ──────────────────────────────────────────────────────────────────────────
 * The shapes are those of motet.model.filters, read as tuples. */

static bool
expect_tuple(PyObject *object, Py_ssize_t size, const char *what)
{
    if (!PyTuple_Check(object) || (size >= 0 && PyTuple_GET_SIZE(object) != size)) {
        PyErr_Format(PyExc_TypeError, "%s of a filter is not what it should be", what);
        return false;
    }
    return true;
}

static bool
read_flag(PyObject *object, bool *flag)
{
    if (!PyBool_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "a flag of a filter is not a bool");
        return false;
    }
    *flag = object == Py_True;
    return true;
}

/* One end of an interval as the low or high point of [low, high). `text` receives a copy. */
static bool
read_end(PyObject *value, int family, bool after, char **text, Point *end)
{
    if (!read_value(value, end)) {
        return false;
    }
    if (end->family != family) {
        PyErr_SetString(PyExc_TypeError, "an end of an interval is not of its family");
        return false;
    }
    if (family == TEXT) {
        memcpy(*text, end->text, (size_t)end->fine);
        end->text = *text;
        if (after) {
            (*text)[end->fine++] = '\0';
        }
        *text += end->fine;
    }
    else if (after) {
        *end = scalar_next(*end);
    }
    return true;
}

static bool
read_interval(PyObject *object, char **text, Interval *interval)
{
    bool low_open, high_open;
    if (!read_flag(PyTuple_GET_ITEM(object, 3), &low_open) ||
        !read_flag(PyTuple_GET_ITEM(object, 4), &high_open)) {
        return false;
    }
    PyObject *family_object = PyTuple_GET_ITEM(object, 0);
    long family = PyLong_Check(family_object) ? PyLong_AsLong(family_object) : -1;
    if (family < BOOL || family > TIME) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "an interval is of no known family");
        }
        return false;
    }
    PyObject *low = PyTuple_GET_ITEM(object, 1), *high = PyTuple_GET_ITEM(object, 2);
    interval->low = family_start((int)family);
    interval->high = family_end((int)family);
    if ((low != Py_None && !read_end(low, (int)family, low_open, text, &interval->low)) ||
        (high != Py_None && !read_end(high, (int)family, !high_open, text, &interval->high))) {
        return false;
    }
    if (family == TIME) { /* the first and the last microsecond count as unbounded */
        if (!scalar_less(scalar_from_int(TIME, FIRST_US), interval->low)) {
            interval->low = family_start(TIME);
        }
        if (scalar_less(scalar_from_int(TIME, LAST_US), interval->high)) {
            interval->high = family_end(TIME);
        }
    }
    return true;
}

static bool
is_everything(const Constraint *constraint, const Interval *intervals)
{
    if (!constraint->absent || !constraint->nan || constraint->count != FAMILIES) {
        return false;
    }
    for (int family = 0; family < FAMILIES; family++) {
        if (point_less(family_start(family), intervals[family].low) ||
            point_less(intervals[family].high, family_end(family))) {
            return false;
        }
    }
    return true;
}

static bool
is_single(const Interval *interval)
{
    Point low = interval->low, high = interval->high;
    if (low.family != TEXT) {
        return point_equal(scalar_next(low), high);
    }
    return high.text != NULL && high.fine == low.fine + 1 && high.text[low.fine] == '\0' &&
           memcmp(low.text, high.text, (size_t)low.fine) == 0;
}

/* Reads intervals into `into`, in canonical form. */
static bool
read_constraint(PyObject *object, char **text, Interval *into, Constraint *constraint)
{
    if (!read_flag(PyTuple_GET_ITEM(object, 1), &constraint->nan) ||
        !read_flag(PyTuple_GET_ITEM(object, 2), &constraint->absent)) {
        return false;
    }
    PyObject *intervals = PyTuple_GET_ITEM(object, 0);
    uint32_t count = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(intervals); i++) {
        Interval *next = &into[count];
        if (!read_interval(PyTuple_GET_ITEM(intervals, i), text, next)) {
            return false;
        }
        if (!point_less(next->low, next->high)) {
            continue;
        }
        if (count > 0 && point_less(next->low, next[-1].high)) {
            PyErr_SetString(PyExc_ValueError, "intervals of a filter are not sorted and disjoint");
            return false;
        }
        if (count > 0 && point_equal(next->low, next[-1].high)) {
            next[-1].high = next->high;
            continue;
        }
        count++;
    }
    constraint->count = count;
    constraint->is_point =
        count == 1 && !constraint->absent && !constraint->nan && is_single(into);
    return true;
}

/* How much memory a clause needs; checks all shapes on the way. */
static bool
measure_clause(PyObject *object, size_t *constraint_count, size_t *interval_count, size_t *text)
{
    if (!expect_tuple(object, 1, "a clause") ||
        !expect_tuple(PyTuple_GET_ITEM(object, 0), -1, "a clause")) {
        return false;
    }
    PyObject *pairs = PyTuple_GET_ITEM(object, 0);
    *constraint_count = (size_t)PyTuple_GET_SIZE(pairs);
    *interval_count = *text = 0;
    for (size_t i = 0; i < *constraint_count; i++) {
        PyObject *pair = PyTuple_GET_ITEM(pairs, (Py_ssize_t)i);
        if (!expect_tuple(pair, 2, "a constraint")) {
            return false;
        }
        PyObject *constraint = PyTuple_GET_ITEM(pair, 1);
        if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(pair, 0))) {
            PyErr_SetString(PyExc_TypeError, "an attribute of a filter has no str as its name");
            return false;
        }
        if (!expect_tuple(constraint, 3, "a constraint") ||
            !expect_tuple(PyTuple_GET_ITEM(constraint, 0), -1, "a constraint")) {
            return false;
        }
        PyObject *intervals = PyTuple_GET_ITEM(constraint, 0);
        *interval_count += (size_t)PyTuple_GET_SIZE(intervals);
        for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(intervals); j++) {
            PyObject *interval = PyTuple_GET_ITEM(intervals, j);
            if (!expect_tuple(interval, 5, "an interval")) {
                return false;
            }
            for (int end = 1; end <= 2; end++) {
                PyObject *value = PyTuple_GET_ITEM(interval, end);
                Point point;
                if (PyUnicode_Check(value)) {
                    if (!read_text(value, &point)) {
                        return false;
                    }
                    *text += (size_t)point.fine + 1;
                }
            }
        }
    }
    if (*interval_count > UINT32_MAX / 2 || *constraint_count > UINT32_MAX / 2) {
        PyErr_SetString(PyExc_OverflowError, "a filter is too large");
        return false;
    }
    return true;
}

/* How a name becomes the number of an attribute; `known` only looks it up. */
typedef struct Index Index;
static bool attribute_number(Index *index, PyObject *name, bool intern, uint32_t *number);
static void attribute_release(Index *index, uint32_t number);

static void
clause_release(Index *index, Clause *clause)
{
    for (uint32_t i = 0; i < clause->count; i++) {
        if (clause->constraints[i].attribute != UNKNOWN) {
            attribute_release(index, clause->constraints[i].attribute);
        }
    }
    PyMem_Free(clause->probe);
    clause->probe = NULL;
}

static int
by_attribute(const void *one, const void *two)
{
    uint32_t a = ((const Constraint *)one)->attribute, b = ((const Constraint *)two)->attribute;
    return (a > b) - (a < b);
}

static void
sort_constraints(Clause *clause)
{
    if (clause->count > 32) {
        qsort(clause->constraints, clause->count, sizeof(Constraint), by_attribute);
        return;
    }
    for (uint32_t i = 1; i < clause->count; i++) {
        Constraint constraint = clause->constraints[i];
        uint32_t j = i;
        for (; j > 0 && clause->constraints[j - 1].attribute > constraint.attribute; j--) {
            clause->constraints[j] = clause->constraints[j - 1];
        }
        clause->constraints[j] = constraint;
    }
}

/* Compile a clause. `*result` is NULL when nothing can match it. With `intern` each attribute
 * is counted as used until clause_release. */
static bool
compile_clause(Index *index, PyObject *object, bool intern, Clause **result)
{
    size_t constraints, intervals, text_size;
    *result = NULL;
    if (!measure_clause(object, &constraints, &intervals, &text_size)) {
        return false;
    }
    Clause *clause = PyMem_Malloc(sizeof(Clause) + constraints * sizeof(Constraint) +
                                  intervals * sizeof(Interval) + text_size);
    if (clause == NULL) {
        PyErr_NoMemory();
        return false;
    }
    memset(clause, 0, sizeof(Clause));
    Interval *into = (Interval *)(clause->constraints + constraints);
    char *text = (char *)(into + intervals);
    PyObject *pairs = PyTuple_GET_ITEM(object, 0);
    uint32_t first = 0;
    bool possible = true;
    for (size_t i = 0; i < constraints; i++) {
        PyObject *pair = PyTuple_GET_ITEM(pairs, (Py_ssize_t)i);
        Constraint *constraint = &clause->constraints[clause->count];
        if (!read_constraint(PyTuple_GET_ITEM(pair, 1), &text, into + first, constraint)) {
            goto failed;
        }
        if (is_everything(constraint, into + first)) {
            continue;
        }
        possible = possible && (constraint->count || constraint->absent || constraint->nan);
        PyObject *name = PyTuple_GET_ITEM(pair, 0);
        if (!attribute_number(index, name, intern, &constraint->attribute)) {
            goto failed;
        }
        constraint->first = first;
        first += constraint->count;
        clause->count++;
    }
    if (!possible) {
        if (intern) {
            clause_release(index, clause);
        }
        PyMem_Free(clause);
        return true;
    }
    if (clause->count < constraints) { /* rare: close the gap */
        memmove(clause->constraints + clause->count, into, first * sizeof(Interval));
    }
    sort_constraints(clause);
    for (uint32_t i = 1; i < clause->count; i++) {
        if (clause->constraints[i].attribute == clause->constraints[i - 1].attribute &&
            clause->constraints[i].attribute != UNKNOWN) {
            PyErr_SetString(PyExc_ValueError, "a clause names an attribute twice");
            goto failed;
        }
    }
    *result = clause;
    return true;
failed:
    if (intern) {
        clause_release(index, clause);
    }
    PyMem_Free(clause);
    return false;
}

#endif
