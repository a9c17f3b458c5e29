/* Cells: where a value lies among the bounds of an attribute, which rows a constraint touches,
 * and how bounds are learnt from the current clauses. */
#ifndef MOTET_CELLS_H
#define MOTET_CELLS_H

#include "index.h"

/* ── cells ────────────────────────────────────────────────────────────────────────────── */

/* A double in the order of the points of a family; different points may be equal. */
static inline double
text_step(uint64_t start)
{
    return (double)(start >> 3);
}

static inline double
step_of(Point point)
{
    return point.family == TEXT ? text_step(text_start(point)) : point.number;
}

static inline uint32_t
steps_up_to(const double *steps, double step)
{
    uint32_t count = 0;
    for (int i = 0; i < 8; i++) {
        count += steps[i] <= step;
    }
    return count;
}

/* How many bounds of its family are <= (or, for `below`, <) the point, one by one. */
static uint32_t
count_bounds(const Attribute *attribute, Point point, bool below)
{
    uint32_t from = attribute->starts[point.family], to = attribute->starts[point.family + 1];
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        bool right = below ? point_less(attribute->bounds[middle], point)
                           : !point_less(point, attribute->bounds[middle]);
        from = right ? middle + 1 : from;
        to = right ? to : middle;
    }
    return from;
}

/* How many bounds are <= point; that is the cell it lies in, counted from 1. The family and the
 * step are those of the point. */
MOTET_INLINE uint32_t
cell_at(const Attribute *attribute, int family, double step, const Point *point)
{
    uint32_t first = attribute->starts[family] + 1;
    uint32_t most = attribute->starts[family + 1] - first;
    if (most == 0) {
        return first;
    }
    if (attribute->ladders == NULL) {
        return count_bounds(attribute, *point, false);
    }
    const Ladder *ladder = &attribute->ladders[family];
    uint32_t rung = steps_up_to(ladder->rungs, step);
    uint32_t count = rung < 8 ? 8 * rung + steps_up_to(ladder->steps + 8 * rung, step) : 64;
    count = count < most ? count : most; /* unused steps are infinite; the point may be, too */
    if (count > 0 && ladder->steps[count - 1] == step &&
        point_less(*point, attribute->bounds[first + count - 1])) {
        return count_bounds(attribute, *point, false);
    }
    return first + count;
}

static inline uint32_t
row_of(const Attribute *attribute, Point point)
{
    return point.family == NAN_KIND
               ? NAN_ROW
               : NAN_ROW + cell_at(attribute, point.family, step_of(point), &point);
}

/* The last row that [.., high) reaches. */
static uint32_t
last_row_of(const Attribute *attribute, Point high)
{
    return NAN_ROW + count_bounds(attribute, high, true);
}

/* Walks the ranges of rows that a constraint touches, in order and merged. */
typedef struct {
    const Attribute *attribute;
    const Constraint *constraint;
    const Interval *intervals;
    uint32_t at; /* 0: absent, 1: NaN, then the intervals */
    uint32_t low, high;
} Touched;

static Touched
touched_by(const Attribute *attribute, const Clause *clause, const Constraint *constraint)
{
    return (Touched){attribute, constraint, intervals_of(clause, constraint), 0, 0, 0};
}

static bool
next_touched(Touched *touched)
{
    const Constraint *constraint = touched->constraint;
    if (touched->at == 0) {
        touched->at = 1;
        if (constraint->absent) {
            touched->low = touched->high = ABSENT_ROW;
            return true;
        }
    }
    if (touched->at == 1) {
        touched->at = 2;
        if (constraint->nan) {
            touched->low = touched->high = NAN_ROW;
            return true;
        }
    }
    if (touched->at - 2 >= constraint->count) {
        return false;
    }
    const Interval *interval = &touched->intervals[touched->at++ - 2];
    touched->low = row_of(touched->attribute, interval->low);
    touched->high = last_row_of(touched->attribute, interval->high);
    while (touched->at - 2 < constraint->count) {
        interval = &touched->intervals[touched->at - 2];
        if (row_of(touched->attribute, interval->low) > touched->high) {
            break;
        }
        touched->high = last_row_of(touched->attribute, interval->high);
        touched->at++;
    }
    return true;
}

static inline uint64_t *
row_in(const Column *column, uint32_t row, uint32_t words)
{
    return column->rows + (size_t)row * words;
}

static void
rows_reject(uint64_t *rows, uint32_t words, const Attribute *attribute, const Clause *clause,
            const Constraint *constraint, uint32_t slot)
{
    uint64_t *word = rows + slot / 64;
    uint64_t bit = UINT64_C(1) << slot % 64;
    size_t row = 0;
    Touched touched = touched_by(attribute, clause, constraint);
    while (next_touched(&touched)) {
        for (; row < touched.low; row++) {
            word[row * words] |= bit;
        }
        row = touched.high + 1;
    }
    for (; row <= attribute->row_count; row++) { /* the last row, too */
        word[row * words] |= bit;
    }
}

/* Zeroed, and aligned to cache lines. */
static uint64_t *
new_rows(size_t rows, uint32_t words)
{
    size_t size = (rows * words * sizeof(uint64_t) + 63) / 64 * 64;
    uint64_t *made = aligned_alloc(64, size);
    if (made != NULL) {
        memset(made, 0, size);
    }
    return made;
}

/* Each set bit of a row, as a slot. */
#define EACH_SLOT(row, words, slot)                                                           \
    for (uint32_t word_ = 0, slot; word_ < (words); word_++)                                  \
        for (uint64_t left_ = (row)[word_];                                                   \
             left_ && (slot = word_ * 64 + (uint32_t)__builtin_ctzll(left_), true);           \
             left_ &= left_ - 1)

static const Constraint *
constraint_on(const Clause *clause, uint32_t attribute)
{
    for (uint32_t i = 0; i < clause->count; i++) {
        if (clause->constraints[i].attribute == attribute) {
            return &clause->constraints[i];
        }
    }
    return NULL;
}

static Column *
find_column(const Block *block, uint32_t attribute)
{
    for (size_t i = 0; i < block->column_count; i++) {
        if (block->columns[i].attribute == attribute) {
            return &block->columns[i];
        }
    }
    return NULL;
}

/* ── learning cells ───────────────────────────────────────────────────────────────────── */

static int
by_point(const void *one, const void *two)
{
    const Point *a = one, *b = two;
    return point_less(*b, *a) - point_less(*a, *b);
}

static Ladder *
make_ladders(const Point *bounds, const uint32_t *starts)
{
    Ladder *ladders = PyMem_Malloc(FAMILIES * sizeof(Ladder));
    for (int family = 0; ladders != NULL && family < FAMILIES; family++) {
        uint32_t first = starts[family] + 1, count = starts[family + 1] - first;
        for (uint32_t i = 0; i < MOST_BOUNDS; i++) {
            ladders[family].steps[i] = i < count ? step_of(bounds[first + i]) : INFINITY;
        }
        for (uint32_t i = 0; i < 8; i++) {
            ladders[family].rungs[i] = ladders[family].steps[8 * i + 7];
        }
    }
    return ladders;
}

/* Adopts sorted bounds, including the fixed ones. Texts are copied behind them. */
static bool
set_bounds(Attribute *attribute, const Point *bounds, uint32_t count)
{
    size_t text_size = 0;
    for (uint32_t i = 0; i < count; i++) {
        text_size += bounds[i].family == TEXT ? (size_t)bounds[i].fine : 0;
    }
    Point *copy = PyMem_Malloc(count * sizeof(Point) + text_size);
    if (copy == NULL) {
        return false;
    }
    char *text = (char *)(copy + count);
    memset(attribute->starts, 0, sizeof attribute->starts);
    for (uint32_t i = 0; i < count; i++) {
        copy[i] = bounds[i];
        if (bounds[i].family == TEXT) {
            memcpy(text, bounds[i].text, (size_t)bounds[i].fine);
            copy[i].text = text;
            text += bounds[i].fine;
        }
        attribute->starts[bounds[i].family + 1] = i + 1;
    }
    Ladder *ladders = count > FIXED_BOUNDS ? make_ladders(copy, attribute->starts) : NULL;
    if (count > FIXED_BOUNDS && ladders == NULL) {
        PyMem_Free(copy);
        return false;
    }
    PyMem_Free(attribute->bounds);
    PyMem_Free(attribute->ladders);
    attribute->bounds = copy;
    attribute->ladders = ladders;
    attribute->row_count = NAN_ROW + count + 1;
    return true;
}

static uint32_t
fixed_bounds(Point *bounds)
{
    uint32_t count = 0;
    bounds[count++] = scalar(BOOL, 0, 0);
    bounds[count++] = scalar(BOOL, 1, 0);
    for (int family = NUMBER; family < FAMILIES; family++) {
        bounds[count++] = family_start(family);
    }
    return count;
}

/* Samples of the ends of intervals, and of points, among the members of an attribute. */
typedef struct {
    Point *ends, *points;
    size_t end_count, point_count;
} Samples;

static void
take_sample(Samples *samples, Point end)
{
    if (samples->end_count < MOST_SAMPLES && !point_equal(end, family_start(end.family)) &&
        !point_equal(end, family_end(end.family))) {
        samples->ends[samples->end_count++] = end;
    }
}

static void
take_samples(const Index *index, uint32_t number, Samples *samples)
{
    const Attribute *attribute = index->attributes[number];
    size_t stride = attribute->members / (MOST_SAMPLES / 2) + 1, turn = 0;
    for (size_t i = 0; i < attribute->block_count; i++) {
        const Block *block = attribute->blocks[i];
        const Column *column = find_column(block, number);
        EACH_SLOT(row_in(column, attribute->row_count, block->words), block->words, slot)
        {
            if (turn++ % stride != 0) {
                continue;
            }
            const Clause *clause = block->clauses[slot];
            const Constraint *constraint = constraint_on(clause, number);
            const Interval *intervals = intervals_of(clause, constraint);
            /* Two members represent a long list. */
            uint32_t step = constraint->count > 2 ? constraint->count / 2 : 1;
            for (uint32_t j = 0; j < constraint->count; j += step) {
                take_sample(samples, intervals[j].low);
                if (!is_single(&intervals[j])) { /* a point ends where the next one starts */
                    take_sample(samples, intervals[j].high);
                }
            }
            if (constraint->is_point && samples->point_count < MOST_SAMPLES) {
                samples->points[samples->point_count++] = intervals->low;
            }
        }
    }
}

static bool
are_diverse(Point *points, size_t count)
{
    if (count < DIVERSE_AT) {
        return false;
    }
    qsort(points, count, sizeof(Point), by_point);
    double equal_pairs = 0;
    for (size_t i = 0, j; i < count; i = j) {
        for (j = i + 1; j < count && point_equal(points[i], points[j]); j++) {
        }
        equal_pairs += (double)(j - i) * (double)(j - i - 1) / 2;
    }
    return equal_pairs * DIVERSE < (double)count * (double)(count - 1) / 2;
}

/* Quantiles of the samples and the fixed bounds, sorted and without duplicates. */
static uint32_t
choose_bounds(Samples *samples, size_t wanted, Point *bounds)
{
    uint32_t count = fixed_bounds(bounds);
    qsort(samples->ends, samples->end_count, sizeof(Point), by_point);
    wanted = wanted < samples->end_count ? wanted : samples->end_count;
    for (size_t i = 0; i < wanted; i++) {
        bounds[count++] = samples->ends[(2 * i + 1) * samples->end_count / (2 * wanted)];
    }
    qsort(bounds, count, sizeof(Point), by_point);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (kept == 0 || !point_equal(bounds[kept - 1], bounds[i])) {
            bounds[kept++] = bounds[i];
        }
    }
    return kept;
}

/* How many bounds are worthwhile: few if few clauses of a block use the attribute. */
static size_t
useful_bounds(const Attribute *attribute)
{
    size_t slots = 1;
    for (size_t i = 0; i < attribute->block_count; i++) {
        slots += attribute->blocks[i]->words * 64;
    }
    size_t wanted = 1 + 8 * MOST_BOUNDS * attribute->members / slots;
    return wanted < MOST_BOUNDS ? wanted : MOST_BOUNDS;
}

/* Recomputes the rows of one column for other cells. */
static uint64_t *
learnt_rows(const Attribute *attribute, const Attribute *learnt, const Block *block,
            uint32_t number)
{
    uint64_t *rows = new_rows(learnt->row_count + 1, block->words);
    const Column *column = find_column(block, number);
    if (rows != NULL) {
        EACH_SLOT(row_in(column, attribute->row_count, block->words), block->words, slot)
        {
            const Clause *clause = block->clauses[slot];
            rows_reject(rows, block->words, learnt, clause, constraint_on(clause, number), slot);
        }
    }
    return rows;
}

/* Learns the cells of an attribute again. If memory is short, the old ones stay in use. */
static void
learn(Index *index, uint32_t number)
{
    Attribute *attribute = index->attributes[number];
    attribute->changes = 0;
    Attribute learnt = *attribute;
    learnt.bounds = NULL;
    learnt.ladders = NULL;
    Point bounds[MOST_BOUNDS + FIXED_BOUNDS];
    Point *room = PyMem_Malloc(2 * MOST_SAMPLES * sizeof(Point));
    uint64_t **rows = PyMem_Calloc(attribute->block_count + 1, sizeof(uint64_t *));
    size_t made = 0;
    if (room == NULL || rows == NULL) {
        goto done;
    }
    Samples samples = {room, room + MOST_SAMPLES, 0, 0};
    take_samples(index, number, &samples);
    uint32_t bound_count = choose_bounds(&samples, useful_bounds(attribute), bounds);
    if (!set_bounds(&learnt, bounds, bound_count)) {
        goto done;
    }
    for (; made < attribute->block_count; made++) {
        rows[made] = learnt_rows(attribute, &learnt, attribute->blocks[made], number);
        if (rows[made] == NULL) {
            goto done;
        }
    }
    for (size_t i = 0; i < made; i++) {
        Column *column = find_column(attribute->blocks[i], number);
        free(column->rows);
        column->rows = rows[i];
        rows[i] = NULL;
    }
    PyMem_Free(attribute->bounds);
    PyMem_Free(attribute->ladders);
    *attribute = learnt;
    learnt.bounds = NULL;
    learnt.ladders = NULL;
    attribute->is_diverse = are_diverse(samples.points, samples.point_count);
done:
    for (size_t i = 0; i < made; i++) {
        free(rows[i]);
    }
    PyMem_Free(learnt.bounds);
    PyMem_Free(learnt.ladders);
    PyMem_Free(rows);
    PyMem_Free(room);
}

#endif
