/* Homes: where a clause is stored, which determines the events that check it. Also adds and
 * removes entries. */
#ifndef MOTET_HOME_H
#define MOTET_HOME_H

#include "block.h"

/* ── homes ────────────────────────────────────────────────────────────────────────────── */

static void
link_loose(Home *home, Clause *clause)
{
    clause->previous = NULL;
    clause->next = home->loose;
    if (home->loose != NULL) {
        home->loose->previous = clause;
    }
    home->loose = clause;
    home->loose_count++;
}

static void
unlink_loose(Home *home, Clause *clause)
{
    *(clause->previous ? &clause->previous->next : &home->loose) = clause->next;
    if (clause->next != NULL) {
        clause->next->previous = clause->previous;
    }
    clause->next = clause->previous = NULL;
    home->loose_count--;
}

static Home *
find_point_home(const Attribute *attribute, Point point, uint64_t hash)
{
    TABLE_EACH(&attribute->points, hash, cell)
    {
        Home *home = cell->item;
        if (point_equal(home->point, point)) {
            return home;
        }
    }
    return NULL;
}

static Home *
home_new(HomeKind kind, uint32_t owner)
{
    Home *home = PyMem_Calloc(1, sizeof(Home));
    if (home != NULL) {
        home->kind = kind;
        home->owner = owner;
    }
    return home;
}

static Home *
point_home(Attribute *attribute, uint32_t number, Point point)
{
    uint64_t hash = point_hash(point);
    Home *home = find_point_home(attribute, point, hash);
    if (home != NULL || !table_reserve(&attribute->points) ||
        (home = home_new(OF_POINT, number)) == NULL) {
        return home;
    }
    if (point.family == TEXT) {
        char *text = PyMem_Malloc((size_t)point.fine + 1);
        if (text == NULL) {
            PyMem_Free(home);
            return NULL;
        }
        memcpy(text, point.text, (size_t)point.fine);
        point.text = text;
    }
    home->point = point;
    table_put(&attribute->points, hash, home);
    return home;
}

/* Chooses the home of a clause: the common home if memory is short. */
static Home *
choose_home(Index *index, const Clause *clause)
{
    Attribute *rarest = NULL;
    uint32_t rarest_number = 0;
    Home *home = NULL;
    for (uint32_t i = 0; i < clause->count; i++) {
        const Constraint *constraint = &clause->constraints[i];
        Attribute *attribute = index->attributes[constraint->attribute];
        if (constraint->is_point && attribute->is_diverse) {
            home = point_home(attribute, constraint->attribute,
                              intervals_of(clause, constraint)->low);
            return home != NULL ? home : &index->common;
        }
        if (!constraint->absent && (rarest == NULL || attribute->uses < rarest->uses)) {
            rarest = attribute;
            rarest_number = constraint->attribute;
        }
    }
    if (rarest != NULL && index->clause_count >= RARE_AT &&
        rarest->uses * RARE <= index->clause_count) {
        if (rarest->home == NULL) {
            rarest->home = home_new(OF_ATTRIBUTE, rarest_number);
        }
        home = rarest->home;
    }
    else if (index->hops[clause->hop].uses >= HOP_HOME_AT) {
        Hop *hop = &index->hops[clause->hop];
        if (hop->home == NULL) {
            hop->home = home_new(OF_HOP, clause->hop);
        }
        home = hop->home;
    }
    return home != NULL ? home : &index->common;
}

static void
home_free_if_empty(Index *index, Home *home)
{
    if (home->kind == COMMON || home->loose != NULL || home->blocks != NULL) {
        return;
    }
    if (home->kind == OF_HOP) {
        index->hops[home->owner].home = NULL;
    }
    else if (home->kind == OF_ATTRIBUTE) {
        index->attributes[home->owner]->home = NULL;
    }
    else {
        table_remove(&index->attributes[home->owner]->points, point_hash(home->point), home);
        if (home->point.family == TEXT) {
            PyMem_Free((char *)home->point.text);
        }
    }
    PyMem_Free(home);
}

/* Cannot fail: without memory for blocks, clauses stay loose, which is slow but correct. */
static void
home_take(Index *index, Home *home, Clause *clause)
{
    clause->home = home;
    if (home->blocks != NULL && block_take(index, home, clause)) {
        return;
    }
    link_loose(home, clause);
    while (home->loose_count > MOST_LOOSE || home->blocks != NULL) {
        clause = home->loose;
        if (clause == NULL || !block_take(index, home, clause)) {
            return;
        }
        unlink_loose(home, clause);
    }
}

static void
home_release(Index *index, Clause *clause)
{
    Home *home = clause->home;
    if (clause->block != NULL) {
        block_release(index, clause);
    }
    else {
        unlink_loose(home, clause);
    }
    home_free_if_empty(index, home);
}

/* ── entries ──────────────────────────────────────────────────────────────────────────── */

static Entry *
find_entry(const Index *index, int64_t key)
{
    TABLE_EACH(&index->entries, hash_word((uint64_t)key), cell)
    {
        Entry *entry = cell->item;
        if (entry->key == key) {
            return entry;
        }
    }
    return NULL;
}

/* Inserts a compiled entry; the table of entries has room for it. */
static void
index_take(Index *index, Entry *entry)
{
    table_put(&index->entries, hash_word((uint64_t)entry->key), entry);
    index->union_count += entry->count > 1;
    index->void_count += entry->count == 0;
    for (uint32_t i = 0; i < entry->count; i++) {
        Clause *clause = entry->clauses[i];
        index->clause_count++;
        home_take(index, choose_home(index, clause), clause);
        for (uint32_t j = 0; j < clause->count; j++) {
            uint32_t number = clause->constraints[j].attribute;
            const Attribute *attribute = index->attributes[number];
            if (attribute->changes >= LEAST_CHANGES &&
                attribute->changes * 2 >= attribute->members) {
                learn(index, number);
            }
        }
    }
}

static void
index_release(Index *index, Entry *entry)
{
    table_remove(&index->entries, hash_word((uint64_t)entry->key), entry);
    index->union_count -= entry->count > 1;
    index->void_count -= entry->count == 0;
    for (uint32_t i = 0; i < entry->count; i++) {
        Clause *clause = entry->clauses[i];
        index->clause_count--;
        home_release(index, clause);
        clause_release(index, clause);
        PyMem_Free(clause);
    }
    hop_release(index, entry->hop);
}

static void
index_clear(Index *index)
{
    while (index->entries.used > 0) { /* removal moves entries: repeat until none is left */
        for (size_t i = 0; i <= index->entries.mask; i++) {
            Entry *entry = index->entries.cells[i].item;
            if (entry != NULL) {
                index_release(index, entry);
                Py_DECREF(entry->filter);
                PyMem_Free(entry);
            }
        }
    }
    table_free(&index->entries);
    table_free(&index->names);
    table_free(&index->objects);
    table_free(&index->hop_numbers);
    PyMem_Free(index->attributes);
    PyMem_Free(index->free_attributes);
    PyMem_Free(index->hops);
    PyMem_Free(index->hit);
    PyMem_Free(index->values);
    PyMem_Free(index->saids);
    PyMem_Free(index->present);
    PyMem_Free(index->found);
    PyMem_Free(index->spare);
}

#endif
