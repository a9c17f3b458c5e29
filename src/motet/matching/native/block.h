/* Blocks: slots for clauses, with columns of reject rows that are updated with the clauses. */
#ifndef MOTET_BLOCK_H
#define MOTET_BLOCK_H

#include "names.h"

static void
link_block(Home *home, Block *block, bool first)
{
    block->previous = first ? NULL : home->last_block;
    block->next = first ? home->blocks : NULL;
    *(block->previous ? &block->previous->next : &home->blocks) = block;
    *(block->next ? &block->next->previous : &home->last_block) = block;
}

static void
unlink_block(Home *home, Block *block)
{
    *(block->previous ? &block->previous->next : &home->blocks) = block->next;
    *(block->next ? &block->next->previous : &home->last_block) = block->previous;
}

static void
block_delete(Block *block)
{
    for (size_t i = 0; i < block->column_count; i++) {
        free(block->columns[i].rows);
    }
    PyMem_Free(block->columns);
    PyMem_Free(block->clauses);
    PyMem_Free(block->probes);
    PyMem_Free(block->hops);
    free(block->alive);
    free(block->unions);
    PyMem_Free(block);
}

static Block *
block_new(Home *home)
{
    Block *block = PyMem_Calloc(1, sizeof(Block));
    if (block == NULL) {
        return NULL;
    }
    block->words = 1;
    block->home = home;
    block->alive = new_rows(1, 1);
    block->unions = new_rows(1, 1);
    block->clauses = PyMem_Calloc(64, sizeof(Clause *));
    block->probes = PyMem_Calloc(64, sizeof(Probe *));
    block->hops = PyMem_Calloc(64, sizeof(uint32_t));
    if (!block->alive || !block->unions || !block->clauses || !block->probes || !block->hops) {
        block_delete(block);
        return NULL;
    }
    link_block(home, block, true);
    return block;
}

/* Copies rows to another length. */
static uint64_t *
resized_rows(const uint64_t *rows, size_t count, uint32_t words, uint32_t new_words)
{
    uint64_t *made = new_rows(count, new_words);
    size_t size = (words < new_words ? words : new_words) * sizeof(uint64_t);
    for (size_t i = 0; made != NULL && i < count; i++) {
        memcpy(made + i * new_words, rows + i * words, size);
    }
    return made;
}

/* Changes the number of slots; removed slots are free. On failure nothing has changed. */
static bool
block_resize(const Index *index, Block *block, uint32_t words)
{
    size_t slots = (size_t)words * 64, kept = (words < block->words ? words : block->words) * 64;
    uint64_t **rows = PyMem_Calloc(block->column_count + 1, sizeof(uint64_t *));
    uint64_t *alive = resized_rows(block->alive, 1, block->words, words);
    uint64_t *unions = resized_rows(block->unions, 1, block->words, words);
    Clause **clauses = PyMem_Calloc(slots, sizeof(Clause *));
    Probe **probes = PyMem_Calloc(slots, sizeof(Probe *));
    uint32_t *hops = PyMem_Calloc(slots, sizeof(uint32_t));
    bool fits = rows && alive && unions && clauses && probes && hops;
    for (size_t i = 0; fits && i < block->column_count; i++) {
        const Column *column = &block->columns[i];
        size_t count = index->attributes[column->attribute]->row_count + 1;
        rows[i] = resized_rows(column->rows, count, block->words, words);
        fits = rows[i] != NULL;
    }
    for (size_t i = 0; rows != NULL && i < block->column_count; i++) {
        free(fits ? block->columns[i].rows : rows[i]);
        if (fits) {
            block->columns[i].rows = rows[i];
        }
    }
    if (fits) {
        memcpy(clauses, block->clauses, kept * sizeof(Clause *));
        memcpy(probes, block->probes, kept * sizeof(Probe *));
        memcpy(hops, block->hops, kept * sizeof(uint32_t));
    }
    free(fits ? block->alive : alive);
    free(fits ? block->unions : unions);
    PyMem_Free(fits ? block->clauses : clauses);
    PyMem_Free(fits ? block->probes : probes);
    PyMem_Free(fits ? block->hops : hops);
    PyMem_Free(rows);
    if (fits) {
        block->words = words;
        block->alive = alive;
        block->unions = unions;
        block->clauses = clauses;
        block->probes = probes;
        block->hops = hops;
    }
    return fits;
}

static inline bool
is_full(const Block *block)
{
    return block->live == block->words * 64;
}

static void
drop_column(Index *index, Block *block, Column *column)
{
    Attribute *attribute = index->attributes[column->attribute];
    Block *moved = attribute->blocks[--attribute->block_count];
    if (moved != block) {
        attribute->blocks[column->place] = moved;
        find_column(moved, column->attribute)->place = column->place;
    }
    free(column->rows);
    *column = block->columns[--block->column_count];
}

/* The column for a constraint, created if worthwhile. NULL is valid: rows only speed up. */
static Column *
column_for(Index *index, Block *block, uint32_t number)
{
    Attribute *attribute = index->attributes[number];
    Column *column = find_column(block, number);
    bool is_sparse = attribute->uses * SPARSE < index->clause_count &&
                     block->words > SMALL_WORDS && attribute->home != block->home;
    if (column != NULL || is_sparse ||
        !grow((void **)&block->columns, &block->column_capacity, block->column_count,
              sizeof(Column)) ||
        !grow((void **)&attribute->blocks, &attribute->block_capacity, attribute->block_count,
              sizeof(Block *))) {
        return column;
    }
    uint64_t *rows = new_rows(attribute->row_count + 1, block->words);
    if (rows != NULL) {
        column = &block->columns[block->column_count++];
        *column = (Column){rows, number, 0, (uint32_t)attribute->block_count};
        attribute->blocks[attribute->block_count++] = block;
    }
    return column;
}

/* Puts a clause into the first free slot, which exists. */
static void
block_put(Index *index, Block *block, Clause *clause)
{
    uint32_t word = 0;
    while (~block->alive[word] == 0) {
        word++;
    }
    uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(~block->alive[word]);
    uint64_t bit = UINT64_C(1) << slot % 64;
    for (uint32_t i = 0; i < clause->count; i++) {
        const Constraint *constraint = &clause->constraints[i];
        Attribute *attribute = index->attributes[constraint->attribute];
        Column *column = column_for(index, block, constraint->attribute);
        if (column == NULL) {
            block->hidden++;
            continue;
        }
        rows_reject(column->rows, block->words, attribute, clause, constraint, slot);
        column->users++;
        attribute->members++;
    }
    block->alive[word] |= bit;
    block->top = block->top > word ? block->top : word + 1;
    if (clause->in_union) {
        block->unions[word] |= bit;
    }
    block->clauses[slot] = clause;
    block->probes[slot] = clause->probe;
    block->hops[slot] = clause->hop;
    block->live++;
    clause->block = block;
    clause->slot = slot;
}

static void
block_remove(Index *index, Block *block, Clause *clause)
{
    uint32_t word = clause->slot / 64;
    uint64_t bit = UINT64_C(1) << clause->slot % 64;
    for (uint32_t i = 0; i < clause->count; i++) {
        uint32_t number = clause->constraints[i].attribute;
        Attribute *attribute = index->attributes[number];
        Column *column = find_column(block, number);
        if (column == NULL ||
            !(row_in(column, attribute->row_count, block->words)[word] & bit)) {
            block->hidden--;
            continue;
        }
        attribute->members--;
        if (--column->users == 0) {
            drop_column(index, block, column);
            continue;
        }
        for (uint32_t row = 0; row <= attribute->row_count; row++) {
            row_in(column, row, block->words)[word] &= ~bit;
        }
    }
    block->alive[word] &= ~bit;
    block->unions[word] &= ~bit;
    while (block->top > 0 && block->alive[block->top - 1] == 0) {
        block->top--;
    }
    block->clauses[clause->slot] = NULL;
    block->probes[clause->slot] = NULL;
    block->live--;
    clause->block = NULL;
}

/* A block that is three quarters empty shrinks to half its slots. */
static void
block_shrink(Index *index, Block *block)
{
    uint32_t words = block->words / 2;
    for (uint32_t slot = words * 64; slot < block->words * 64; slot++) {
        Clause *clause = block->clauses[slot];
        if (clause != NULL) {
            block_remove(index, block, clause);
            block_put(index, block, clause);
        }
    }
    (void)block_resize(index, block, words);
}

/* Puts a clause into a block of the home. On failure nothing has changed. */
static bool
block_take(Index *index, Home *home, Clause *clause)
{
    Block *block = home->blocks;
    if (block == NULL ||
        (is_full(block) && (block->words == MOST_WORDS ||
                            !block_resize(index, block, block->words * 2)))) {
        block = block_new(home);
    }
    if (block == NULL) {
        return false;
    }
    block_put(index, block, clause);
    for (uint32_t i = 0; i < clause->count; i++) {
        index->attributes[clause->constraints[i].attribute]->changes++;
    }
    if (is_full(block) && block->words == MOST_WORDS && block->next != NULL) {
        unlink_block(home, block);
        link_block(home, block, false);
    }
    return true;
}

static void
block_release(Index *index, Clause *clause)
{
    Block *block = clause->block;
    Home *home = block->home;
    bool was_full = is_full(block);
    block_remove(index, block, clause);
    if (block->live == 0) {
        unlink_block(home, block);
        block_delete(block);
        return;
    }
    if (was_full && block->previous != NULL) {
        unlink_block(home, block);
        link_block(home, block, true);
    }
    if (block->words > 1 && block->live * 4 <= block->words * 64) {
        block_shrink(index, block);
    }
}

#endif
