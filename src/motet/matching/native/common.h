/* Shared by all parts: memory, hashing, and a general hash table.
 *
 * The parts of the extension are headers of static functions, included in order by _native.c:
 * one translation unit, so that the inner loops inline and nothing is exported.
 *
 * Nothing below scan.h runs Python code, so no call can be entered again halfway through.
 */
#ifndef MOTET_COMMON_H
#define MOTET_COMMON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <datetime.h>

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* For functions that run once per attribute of each event: keeps values in registers. */
#if defined(__GNUC__)
#define MOTET_INLINE static inline __attribute__((always_inline))
#else
#define MOTET_INLINE static inline
#endif

static uint64_t hash_seed; /* differs per process, against deliberate collisions of names */

static inline uint64_t
hash_word(uint64_t word)
{
    word ^= hash_seed;
    word = (word ^ (word >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ (word >> 27)) * UINT64_C(0x94d049bb133111eb);
    return word ^ (word >> 31);
}

static inline uint64_t
hash_bytes(const char *bytes, size_t size)
{
    uint64_t hash = hash_seed + size * UINT64_C(0x9e3779b97f4a7c15);
    uint64_t word = 0;
    if (size >= 8) {
        for (size_t i = 0; i + 8 < size; i += 8) {
            memcpy(&word, bytes + i, 8);
            hash = (hash ^ word) * UINT64_C(0xbf58476d1ce4e5b9);
            hash ^= hash >> 29;
        }
        memcpy(&word, bytes + size - 8, 8); /* may repeat some bytes, which is harmless */
    }
    else if (size >= 4) {
        uint32_t first, last;
        memcpy(&first, bytes, 4);
        memcpy(&last, bytes + size - 4, 4);
        word = (uint64_t)first << 32 | last;
    }
    else if (size > 0) {
        word = (uint64_t)(unsigned char)bytes[0] << 16 |
               (uint64_t)(unsigned char)bytes[size / 2] << 8 | (unsigned char)bytes[size - 1];
    }
    return hash_word(hash ^ word);
}

/* ── a hash table of pointers ─────────────────────────────────────────────────────────────
 * Open addressing, linear probing, deletion by shifting back. The table compares hashes only;
 * the caller decides on equality. */

typedef struct {
    uint64_t hash;
    void *item; /* NULL: free */
} Cell;

typedef struct {
    Cell *cells;
    size_t mask; /* capacity - 1; undefined while cells is NULL */
    size_t used;
} Table;

#define TABLE_LEAST 8

/* Iterates over the cells with this hash: start with `at = hash`, continue with at + 1. */
static inline Cell *
table_next(const Table *table, uint64_t hash, uint64_t *at)
{
    if (table->cells == NULL) {
        return NULL;
    }
    for (;; ++*at) {
        Cell *cell = &table->cells[*at & table->mask];
        if (cell->item == NULL) {
            return NULL;
        }
        if (cell->hash == hash) {
            return cell;
        }
    }
}

#define TABLE_EACH(table, wanted, cell)                                                       \
    for (uint64_t hash_ = (wanted), at_ = hash_, go_ = 1; go_; go_ = 0)                       \
        for (Cell *cell; (cell = table_next((table), hash_, &at_)) != NULL; at_++)

static inline void
table_put(Table *table, uint64_t hash, void *item)
{
    size_t at = hash & table->mask;
    while (table->cells[at].item != NULL) {
        at = (at + 1) & table->mask;
    }
    table->cells[at] = (Cell){hash, item};
    table->used++;
}

static bool
table_resize(Table *table, size_t capacity)
{
    Table bigger = {PyMem_Calloc(capacity, sizeof(Cell)), capacity - 1, 0};
    if (bigger.cells == NULL) {
        return false;
    }
    for (size_t i = 0; table->cells != NULL && i <= table->mask; i++) {
        if (table->cells[i].item != NULL) {
            table_put(&bigger, table->cells[i].hash, table->cells[i].item);
        }
    }
    PyMem_Free(table->cells);
    *table = bigger;
    return true;
}

/* Make sure that the next table_put fits. */
static bool
table_reserve(Table *table)
{
    if (table->cells == NULL) {
        return table_resize(table, TABLE_LEAST);
    }
    return (table->used + 1) * 3 <= (table->mask + 1) * 2 ||
           table_resize(table, 2 * (table->mask + 1));
}

static void
table_remove(Table *table, uint64_t hash, const void *item)
{
    size_t hole = hash & table->mask;
    while (table->cells[hole].item != item) {
        hole = (hole + 1) & table->mask;
    }
    for (size_t at = hole;;) {
        at = (at + 1) & table->mask;
        if (table->cells[at].item == NULL) {
            break;
        }
        /* It may move into the hole unless its home lies between the hole and itself. */
        size_t from_home = (at - table->cells[at].hash) & table->mask;
        if (from_home >= ((at - hole) & table->mask)) {
            table->cells[hole] = table->cells[at];
            hole = at;
        }
    }
    table->cells[hole].item = NULL;
    table->used--;
    if (table->mask >= TABLE_LEAST * 2 && table->used * 8 < table->mask) {
        (void)table_resize(table, (table->mask + 1) / 2); /* without memory it stays large */
    }
}

static void
table_free(Table *table)
{
    PyMem_Free(table->cells);
    *table = (Table){NULL, 0, 0};
}

/* Ensures room for one more item; the array doubles. */
static bool
grow(void **items, size_t *capacity, size_t count, size_t item_size)
{
    if (count < *capacity) {
        return true;
    }
    size_t more = *capacity < 4 ? 4 : *capacity * 2;
    void *bigger = PyMem_Realloc(*items, more * item_size);
    if (bigger == NULL) {
        return false;
    }
    *items = bigger;
    *capacity = more;
    return true;
}

#endif
