/* Queries: which clauses match an event, which overlap or contain a clause. */
#ifndef MOTET_SCAN_H
#define MOTET_SCAN_H

#include "event.h"

/* If the compiler supports it, the inner loop is compiled twice and chosen at load time. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__) && \
    !defined(MOTET_PLAIN)
#define MOTET_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define MOTET_WIDE
#endif

/* A few clauses may find all hops: a query for hops starts with this many words, then doubles. */
enum { FIRST_STRIP = 8 };

/* ── answers ──────────────────────────────────────────────────────────────────────────── */

typedef struct {
    int64_t key;
    PyObject *filter; /* strong; Python must decide. NULL: certainly found */
} Finding;

/* The result of a query: hops as a mask in the index, or keys. */
typedef struct {
    bool wants_hops;
    bool repeats; /* the query may visit the same clause again */
    Finding *findings;
    size_t count, capacity;
    size_t hops_found;
    bool out_of_memory;
} Answer;

static inline bool
hop_is_found(const Index *index, uint32_t hop)
{
    return index->found[hop / 64] >> hop % 64 & 1;
}

static inline bool
is_complete(const Index *index, const Answer *answer)
{
    return (answer->wants_hops && answer->hops_found == index->hops_in_use) ||
           answer->out_of_memory;
}

static inline bool
is_done(const Index *index, const Answer *answer, const Home *home)
{
    return is_complete(index, answer) ||
           (answer->wants_hops && home->kind == OF_HOP && hop_is_found(index, home->owner));
}

/* Whether this clause could still add to the answer. */
static inline bool
is_news(const Index *index, const Answer *answer, const Clause *clause)
{
    if (answer->wants_hops) {
        return !hop_is_found(index, clause->hop);
    }
    bool once = !clause->in_union && !answer->repeats;
    return once || clause->entry->stamp != index->stamp;
}

static void
answer_key(Answer *answer, int64_t key, PyObject *filter)
{
    if (!grow((void **)&answer->findings, &answer->capacity, answer->count, sizeof(Finding))) {
        answer->out_of_memory = true;
        return;
    }
    answer->findings[answer->count++] = (Finding){key, Py_XNewRef(filter)};
}

static void
answer_add(const Index *index, Answer *answer, const Clause *clause, bool for_sure)
{
    if (answer->wants_hops) {
        index->found[clause->hop / 64] |= UINT64_C(1) << clause->hop % 64;
        answer->hops_found++;
        return;
    }
    if (clause->in_union || answer->repeats) {
        clause->entry->stamp = index->stamp;
    }
    answer_key(answer, clause->key, for_sure ? NULL : clause->entry->filter);
}

static void
answer_start(Index *index, Answer *answer)
{
    index->stamp++;
    if (answer->wants_hops && index->hop_count > 0) {
        memset(index->found, 0, (index->hop_count + 63) / 64 * sizeof(uint64_t));
    }
}

/* ── events ───────────────────────────────────────────────────────────────────────────── */

static inline bool
clause_matches(const Index *index, const Clause *clause)
{
    for (uint32_t i = 0; i < clause->count; i++) {
        const Constraint *constraint = &clause->constraints[i];
        bool holds = index->hit[constraint->attribute] == ABSENT_ROW
                         ? constraint->absent
                         : constraint_holds(clause, constraint,
                                            index->values[constraint->attribute]);
        if (!holds) {
            return false;
        }
    }
    return true;
}

/* The slots that no row of the event rejects, for `count` words of a block from `first` on. */
MOTET_WIDE static void
event_survivors(const Block *block, const uint32_t *hit, size_t first, size_t count,
                uint64_t *restrict left)
{
    const Column *column = block->columns, *end = column + block->column_count;
    const uint64_t *alive = block->alive + first;
    uint64_t rejected[MOST_WORDS];
    memset(rejected, 0, count * sizeof(uint64_t));
#define HIT_ROW(i) (row_in(&column[i], hit[column[i].attribute], block->words) + first)
    for (; end - column >= 4; column += 4) {
        const uint64_t *a = HIT_ROW(0), *b = HIT_ROW(1), *c = HIT_ROW(2), *d = HIT_ROW(3);
        for (size_t i = 0; i < count; i++) {
            rejected[i] |= a[i] | b[i] | c[i] | d[i];
        }
    }
    for (; column < end; column++) {
        const uint64_t *a = HIT_ROW(0);
        for (size_t i = 0; i < count; i++) {
            rejected[i] |= a[i];
        }
    }
#undef HIT_ROW
    for (size_t i = 0; i < count; i++) {
        left[i] = alive[i] & ~rejected[i];
    }
}

static inline void
match_clause(const Index *index, const Clause *clause, Answer *answer)
{
    if (is_news(index, answer, clause) && clause_matches(index, clause)) {
        answer_add(index, answer, clause, true);
    }
}

static inline void
match_probe(const Index *index, const Probe *probe, Answer *answer)
{
    if (answer->wants_hops ? hop_is_found(index, probe->hop)
                           : probe->in_union && !is_news(index, answer, probe->clause)) {
        return;
    }
    Verdict verdict = probe_event(probe, index->saids);
    if (verdict == NO || (verdict == PERHAPS && !clause_matches(index, probe->clause))) {
        return;
    }
    if (answer->wants_hops || probe->in_union) {
        answer_add(index, answer, probe->clause, true);
    }
    else {
        answer_key(answer, probe->key, NULL);
    }
}

/* Survivors are verified in three steps: their memory is prefetched while others are checked. */
typedef struct {
    uint32_t slots[64];
    uint32_t count;
} Batch;

static void
match_batch(const Index *index, const Block *block, Batch *batch, Answer *answer)
{
    for (uint32_t i = 0; i < batch->count; i++) {
        const Probe *probe = block->probes[batch->slots[i]];
        (void)*(volatile const uint16_t *)&probe->count; /* a TLB miss stops a prefetch */
        __builtin_prefetch((const char *)probe + 64);
        __builtin_prefetch((const char *)probe + 128);
    }
    for (uint32_t i = 0; i < batch->count; i++) {
        match_probe(index, block->probes[batch->slots[i]], answer);
    }
    batch->count = 0;
}

static void
match_block(const Index *index, const Block *block, uint32_t *strip, Answer *answer)
{
    /* In a query for hops the first match may make the rest unnecessary: prefetch little. */
    const uint32_t batch_size = answer->wants_hops ? 4 : 64;
    uint64_t left[MOST_WORDS];
    Batch batch;
    batch.count = 0;
    for (uint32_t first = 0, count; first < block->top; first += count) {
        count = block->top - first < *strip ? block->top - first : *strip;
        event_survivors(block, index->hit, first, count, left);
        EACH_SLOT(left, count, at)
        {
            uint32_t slot = first * 64 + at;
            if (answer->wants_hops && hop_is_found(index, block->hops[slot])) {
                continue;
            }
            __builtin_prefetch(&block->probes[slot]);
            batch.slots[batch.count++] = slot;
            if (batch.count == batch_size) {
                match_batch(index, block, &batch, answer);
            }
        }
        match_batch(index, block, &batch, answer);
        if (is_done(index, answer, block->home)) {
            return;
        }
        *strip = *strip < MOST_WORDS ? *strip * 2 : *strip;
    }
}

static void
match_home(const Index *index, const Home *home, Answer *answer)
{
    for (const Clause *clause = home->loose; clause != NULL; clause = clause->next) {
        if (clause->is_vague) {
            match_clause(index, clause, answer);
        }
        else {
            match_probe(index, clause->probe, answer);
        }
    }
    uint32_t strip = answer->wants_hops ? FIRST_STRIP : MOST_WORDS;
    for (const Block *block = home->blocks; block != NULL; block = block->next) {
        match_block(index, block, &strip, answer);
        if (is_done(index, answer, home)) {
            return;
        }
    }
}

/* Finds all matches of the event that was read. */
static void
match_event(Index *index, Answer *answer)
{
    answer_start(index, answer);
    match_home(index, &index->common, answer);
    size_t visits = index->has_homes ? index->present_count : 0;
    for (size_t i = 0; i < visits && !is_complete(index, answer); i++) {
        uint32_t number = index->present[i];
        const Attribute *attribute = index->attributes[number];
        if (attribute->home != NULL) {
            match_home(index, attribute->home, answer);
        }
        if (attribute->points.used > 0 && index->hit[number] != NAN_ROW) {
            Point point = index->values[number];
            const Home *home = find_point_home(attribute, point, point_hash(point));
            if (home != NULL) {
                match_home(index, home, answer);
            }
        }
    }
    for (size_t hop = 0; hop < index->hop_count && !is_complete(index, answer); hop++) {
        const Home *home = index->hops[hop].uses > 0 ? index->hops[hop].home : NULL;
        if (home != NULL && !(answer->wants_hops && hop_is_found(index, (uint32_t)hop))) {
            match_home(index, home, answer);
        }
    }
    event_clear(index);
}

/* ── filters ──────────────────────────────────────────────────────────────────────────── */

typedef enum { OVERLAPPING, COVERING, COVERED } Relation;

typedef struct {
    Relation relation;
    Relation rows; /* what rows may rule out: a union may cover a filter that no clause covers */
    bool unions;   /* visit filters of several clauses, or of one clause; see asks_for */
    bool singles;
    const Clause *clause; /* guides the search */
    Clause **clauses;     /* of the filter of the query */
    size_t count;
    Answer *answer;
} Query;

static inline bool
asks_for(const Query *query, const Clause *clause)
{
    return clause->in_union ? query->unions : query->singles;
}

static bool
is_within_one(const Clause *inner, Clause **outers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (clause_within(inner, outers[i])) {
            return true;
        }
    }
    return false;
}

static Verdict
judge(const Query *query, const Clause *clause)
{
    if (query->relation == OVERLAPPING) {
        return clauses_meet(clause, query->clause) ? YES : NO;
    }
    if (query->relation == COVERING) {
        if (clause->in_union) {
            return clauses_meet(clause, query->clause) ? PERHAPS : NO;
        }
        for (size_t i = 0; i < query->count; i++) {
            if (!clause_within(query->clauses[i], clause)) {
                return NO;
            }
        }
        return YES;
    }
    if (query->count > 1 && !clauses_meet(clause, query->clause)) {
        return NO;
    }
    const Entry *entry = clause->entry;
    for (uint32_t i = 0; i < entry->count; i++) {
        if (!is_within_one(entry->clauses[i], query->clauses, query->count)) {
            return query->count > 1 ? PERHAPS : NO;
        }
    }
    return YES;
}

static inline void
try_clause(const Index *index, const Query *query, const Clause *clause)
{
    if (asks_for(query, clause) && is_news(index, query->answer, clause)) {
        Verdict verdict = judge(query, clause);
        if (verdict != NO) {
            answer_add(index, query->answer, clause, verdict == YES);
        }
    }
}

/* A part of a block, and its remaining slots. */
typedef struct {
    const Block *block;
    size_t first, count; /* words */
    uint64_t left[MOST_WORDS];
} Strip;

static inline const uint64_t *
strip_row(const Strip *strip, const Column *column, uint32_t row)
{
    return row_in(column, row, strip->block->words) + strip->first;
}

/* Rules out clauses that reject all cells that the query touches. */
static void
rule_out_apart(Strip *strip, const Column *column, Touched touched)
{
    uint64_t rejecting[MOST_WORDS];
    memcpy(rejecting, strip->left, strip->count * sizeof(uint64_t));
    while (next_touched(&touched)) {
        for (uint32_t row = touched.low; row <= touched.high; row++) {
            const uint64_t *bits = strip_row(strip, column, row);
            for (size_t i = 0; i < strip->count; i++) {
                rejecting[i] &= bits[i];
            }
        }
    }
    for (size_t i = 0; i < strip->count; i++) {
        strip->left[i] &= ~rejecting[i];
    }
}

/* Rules out clauses that reject some cells that the query touches. */
static void
rule_out_narrower(Strip *strip, const Column *column, Touched touched)
{
    while (next_touched(&touched)) {
        for (uint32_t row = touched.low; row <= touched.high; row++) {
            const uint64_t *bits = strip_row(strip, column, row);
            for (size_t i = 0; i < strip->count; i++) {
                strip->left[i] &= ~bits[i];
            }
        }
    }
}

/* Rules out clauses that allow some cells that the query does not touch. */
static void
rule_out_wider(Strip *strip, const Column *column, Touched touched)
{
    uint32_t row = 0, last = touched.attribute->row_count;
    const uint64_t *users = strip_row(strip, column, last);
    for (bool more = true; more;) {
        more = next_touched(&touched);
        for (uint32_t end = more ? touched.low : last; row < end; row++) {
            const uint64_t *bits = strip_row(strip, column, row);
            for (size_t i = 0; i < strip->count; i++) {
                strip->left[i] &= bits[i] | ~users[i]; /* others may be hidden users */
            }
        }
        row = touched.high + 1;
    }
}

static void
keep_users(Strip *strip, const uint64_t *users, bool keep)
{
    for (size_t i = 0; i < strip->count; i++) {
        strip->left[i] &= keep ? users[i] : ~users[i];
    }
}

/* The slots of a part of a block that its rows leave. While a query runs, hit[] holds 1 + the
 * place of the query's constraint on an attribute. */
static void
query_survivors(const Index *index, const Query *query, Strip *strip)
{
    const Block *block = strip->block;
    uint32_t shared = 0;
    for (size_t i = 0; i < strip->count; i++) {
        uint64_t unions = block->unions[strip->first + i];
        strip->left[i] = block->alive[strip->first + i] &
                         ((query->unions ? unions : 0) | (query->singles ? ~unions : 0));
    }
    for (size_t i = 0; i < block->column_count; i++) {
        const Column *column = &block->columns[i];
        const Attribute *attribute = index->attributes[column->attribute];
        const uint64_t *users = strip_row(strip, column, attribute->row_count);
        uint32_t place = index->hit[column->attribute];
        if (place == 0) {
            if (query->rows == COVERING) {
                keep_users(strip, users, false); /* clauses with further constraints do not cover */
            }
            continue;
        }
        shared++;
        Touched touched = touched_by(attribute, query->clause,
                                     &query->clause->constraints[place - 1]);
        if (query->rows == OVERLAPPING) {
            rule_out_apart(strip, column, touched);
        }
        else if (query->rows == COVERING) {
            rule_out_narrower(strip, column, touched);
        }
        else {
            if (block->hidden == 0) {
                keep_users(strip, users, true);
            }
            rule_out_wider(strip, column, touched);
        }
    }
    if (query->rows == COVERED && block->hidden == 0 && shared < query->clause->count) {
        memset(strip->left, 0, strip->count * sizeof(uint64_t)); /* no clause constrains enough */
    }
}

static void
query_home(const Index *index, const Query *query, const Home *home)
{
    for (const Clause *clause = home->loose; clause != NULL; clause = clause->next) {
        try_clause(index, query, clause);
    }
    size_t size = query->answer->wants_hops ? FIRST_STRIP : MOST_WORDS;
    for (const Block *block = home->blocks; block != NULL; block = block->next) {
        Strip strip;
        strip.block = block;
        for (strip.first = 0; strip.first < block->top; strip.first += strip.count) {
            if (is_done(index, query->answer, home)) {
                return;
            }
            strip.count = block->top - strip.first < size ? block->top - strip.first : size;
            query_survivors(index, query, &strip);
            EACH_SLOT(strip.left, strip.count, slot)
            {
                try_clause(index, query, block->clauses[strip.first * 64 + slot]);
            }
            size = size < MOST_WORDS ? size * 2 : size;
        }
    }
}

/* The homes of points: the few that the query names, or all that lie in its constraint. */
static void
query_points(const Index *index, const Query *query, const Attribute *attribute,
             const Constraint *constraint)
{
    if (constraint != NULL && constraint->is_point) {
        Point point = intervals_of(query->clause, constraint)->low;
        const Home *home = find_point_home(attribute, point, point_hash(point));
        if (home != NULL) {
            query_home(index, query, home);
        }
        return;
    }
    if (query->rows == COVERING) {
        return; /* a point covers only itself */
    }
    for (size_t i = 0; i <= attribute->points.mask; i++) {
        const Home *home = attribute->points.cells[i].item;
        if (home != NULL && !is_complete(index, query->answer) &&
            (constraint == NULL || constraint_holds(query->clause, constraint, home->point))) {
            query_home(index, query, home);
        }
    }
}

static void
query_attribute(const Index *index, const Query *query, uint32_t number)
{
    const Attribute *attribute = index->attributes[number];
    uint32_t place = index->hit[number];
    if (attribute == NULL || (place == 0 && query->rows == COVERING)) {
        return; /* a clause that requires an attribute covers none that does not */
    }
    if (attribute->home != NULL) {
        query_home(index, query, attribute->home);
    }
    if (attribute->points.used > 0) {
        query_points(index, query, attribute,
                     place ? &query->clause->constraints[place - 1] : NULL);
    }
}

/* One pass over all homes, guided by one clause. */
static void
query_run(Index *index, const Query *query)
{
    const Clause *clause = query->clause;
    for (uint32_t i = 0; i < clause->count; i++) {
        if (clause->constraints[i].attribute != UNKNOWN) {
            index->hit[clause->constraints[i].attribute] = i + 1;
        }
    }
    query_home(index, query, &index->common);
    if (query->rows == COVERING) { /* only attributes of the query matter */
        for (uint32_t i = 0; i < clause->count; i++) {
            if (clause->constraints[i].attribute != UNKNOWN) {
                query_attribute(index, query, clause->constraints[i].attribute);
            }
        }
    }
    else {
        for (size_t i = 0; i < index->attribute_count && !is_complete(index, query->answer); i++) {
            query_attribute(index, query, (uint32_t)i);
        }
    }
    for (size_t hop = 0; hop < index->hop_count && !is_complete(index, query->answer); hop++) {
        const Home *home = index->hops[hop].uses > 0 ? index->hops[hop].home : NULL;
        if (home != NULL &&
            !(query->answer->wants_hops && hop_is_found(index, (uint32_t)hop))) {
            query_home(index, query, home);
        }
    }
    for (uint32_t i = 0; i < clause->count; i++) {
        if (clause->constraints[i].attribute != UNKNOWN) {
            index->hit[clause->constraints[i].attribute] = ABSENT_ROW;
        }
    }
}

static void
add_all(const Index *index, Answer *answer, bool only_void)
{
    for (size_t i = 0; index->entries.cells != NULL && i <= index->entries.mask; i++) {
        Entry *entry = index->entries.cells[i].item;
        if (entry != NULL && (!only_void || entry->count == 0)) {
            answer_key(answer, entry->key, NULL);
        }
    }
}

/* The filters in this relation to the filter of these clauses, all of which can match. */
static void
query_filter(Index *index, Relation relation, Clause **clauses, size_t count, Answer *answer)
{
    Query query = {relation, relation, true, true, NULL, clauses, count, answer};
    answer_start(index, answer);
    if (relation == COVERING) {
        if (count == 0) {
            add_all(index, answer, false); /* the empty filter is covered by all */
            return;
        }
        query.clause = clauses[0];
        query.unions = false;
        query_run(index, &query);
        if (index->union_count > 0) {
            query.unions = true;
            query.singles = false;
            query.rows = OVERLAPPING;
            query_run(index, &query);
        }
        return;
    }
    if (relation == COVERED && index->void_count > 0) {
        add_all(index, answer, true);
    }
    if (count > 1) {
        query.rows = OVERLAPPING;
        answer->repeats = true;
    }
    for (size_t i = 0; i < count && !is_complete(index, answer); i++) {
        query.clause = clauses[i];
        query_run(index, &query);
    }
}

#endif
