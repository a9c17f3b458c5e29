/* Attributes and hops by name: lookup, creation, reference counts, removal with the last user. */
#ifndef MOTET_NAMES_H
#define MOTET_NAMES_H

#include "cells.h"

/* ── attributes ───────────────────────────────────────────────────────────────────────── */

/* Tables store numbers as pointers, counted from 1, because NULL means none. */
static inline void *
as_item(size_t number)
{
    return (void *)(uintptr_t)(number + 1);
}

static inline uint32_t
from_item(const void *item)
{
    return (uint32_t)((uintptr_t)item - 1);
}

static inline bool
is_called(const Attribute *attribute, Point name)
{
    return attribute->name.fine == name.fine &&
           memcmp(attribute->name.text, name.text, (size_t)name.fine) == 0;
}

static bool
find_attribute(const Index *index, Point name, uint32_t *number)
{
    TABLE_EACH(&index->names, hash_bytes(name.text, (size_t)name.fine), cell)
    {
        *number = from_item(cell->item);
        if (is_called(index->attributes[*number], name)) {
            return true;
        }
    }
    return false;
}

/* The hash of an exact str. Never fails: a str that was a key of a dict has its hash cached. */
static inline uint64_t
object_hash(PyObject *name)
{
    Py_hash_t hash = ((PyASCIIObject *)name)->hash;
    return (uint64_t)(hash != -1 ? hash : PyObject_Hash(name));
}

/* A key of a dict that is not an exact str: a subclass may define its own hash. */
static bool
find_attribute_of_other(const Index *index, PyObject *key, uint32_t *number)
{
    Point name;
    if (!PyUnicode_Check(key)) {
        return false;
    }
    if (!read_text(key, &name)) {
        PyErr_Clear(); /* an object that is not valid text names no attribute */
        return false;
    }
    return find_attribute(index, name, number);
}

/* The same for a key of a dict; usually it is the same str object as in a filter. */
static inline bool
find_attribute_of_key(const Index *index, PyObject *key, uint32_t *number)
{
    if (!PyUnicode_CheckExact(key)) {
        return find_attribute_of_other(index, key, number);
    }
    TABLE_EACH(&index->objects, object_hash(key), cell)
    {
        *number = from_item(cell->item);
        const Attribute *attribute = index->attributes[*number];
        if (attribute->object == key || PyUnicode_Compare(attribute->object, key) == 0) {
            return true;
        }
    }
    return false;
}

static bool
make_room_for_attribute(Index *index)
{
    if (index->attribute_count < index->attribute_capacity) {
        return true;
    }
    size_t capacity = index->attribute_capacity ? 2 * index->attribute_capacity : 8;
    void *attributes = PyMem_Realloc(index->attributes, capacity * sizeof(Attribute *));
    if (attributes != NULL) {
        index->attributes = attributes;
    }
    void *values = PyMem_Realloc(index->values, capacity * sizeof(Point));
    if (values != NULL) {
        index->values = values;
    }
    Said *saids = PyMem_Realloc(index->saids, capacity * sizeof(Said));
    if (saids != NULL) {
        index->saids = saids;
        memset(index->saids + index->attribute_count, 0,
               (capacity - index->attribute_count) * sizeof(Said));
    }
    void *present = PyMem_Realloc(index->present, capacity * sizeof(uint32_t));
    if (present != NULL) {
        index->present = present;
    }
    void *stack = PyMem_Realloc(index->free_attributes, capacity * sizeof(uint32_t));
    if (stack != NULL) {
        index->free_attributes = stack;
    }
    void *hit = PyMem_Realloc(index->hit, capacity * sizeof(uint32_t));
    if (hit != NULL) {
        index->hit = hit;
        memset(index->hit + index->attribute_count, 0,
               (capacity - index->attribute_count) * sizeof(uint32_t));
    }
    if (!attributes || !values || !saids || !present || !stack || !hit) {
        return false;
    }
    index->attribute_capacity = capacity;
    return true;
}

static void
attribute_delete(Attribute *attribute)
{
    Py_DECREF(attribute->object);
    PyMem_Free(attribute->bounds);
    PyMem_Free(attribute->ladders);
    PyMem_Free(attribute->blocks);
    table_free(&attribute->points);
    PyMem_Free(attribute);
}

static Attribute *
attribute_new(PyObject *object, Point name)
{
    Attribute *attribute = PyMem_Calloc(1, sizeof(Attribute));
    Point bounds[FIXED_BOUNDS];
    if (attribute == NULL) {
        return NULL;
    }
    attribute->object = Py_NewRef(object);
    attribute->name = name;
    if (!set_bounds(attribute, bounds, fixed_bounds(bounds))) {
        attribute_delete(attribute);
        return NULL;
    }
    return attribute;
}

static bool
attribute_make(Index *index, PyObject *object, Point name, uint32_t *number)
{
    bool again = index->free_attribute_count > 0;
    size_t at = again ? index->free_attributes[index->free_attribute_count - 1]
                      : index->attribute_count;
    Attribute *attribute;
    if (at >= UNKNOWN - 1 || !table_reserve(&index->names) || !table_reserve(&index->objects) ||
        (!again && !make_room_for_attribute(index)) ||
        (attribute = attribute_new(object, name)) == NULL) {
        PyErr_NoMemory();
        return false;
    }
    index->free_attribute_count -= again;
    index->attribute_count += !again;
    index->attributes[at] = attribute;
    *number = (uint32_t)at;
    table_put(&index->names, hash_bytes(name.text, (size_t)name.fine), as_item(at));
    table_put(&index->objects, object_hash(object), as_item(at));
    return true;
}

static bool
attribute_number(Index *index, PyObject *object, bool intern, uint32_t *number)
{
    Point name;
    if (!read_text(object, &name)) {
        return false;
    }
    if (!find_attribute(index, name, number)) {
        *number = UNKNOWN;
        if (!intern) {
            return true;
        }
        if (!attribute_make(index, object, name, number)) {
            return false;
        }
    }
    index->attributes[*number]->uses += intern;
    return true;
}

static void
attribute_release(Index *index, uint32_t number)
{
    Attribute *attribute = index->attributes[number];
    if (--attribute->uses > 0) {
        return;
    }
    uint64_t hash = hash_bytes(attribute->name.text, (size_t)attribute->name.fine);
    table_remove(&index->names, hash, as_item(number));
    table_remove(&index->objects, object_hash(attribute->object), as_item(number));
    attribute_delete(attribute);
    index->attributes[number] = NULL;
    index->free_attributes[index->free_attribute_count++] = number;
}

/* ── hops ─────────────────────────────────────────────────────────────────────────────── */

static bool
hop_acquire(Index *index, int64_t number, uint32_t *hop)
{
    uint64_t hash = hash_word((uint64_t)number);
    TABLE_EACH(&index->hop_numbers, hash, cell)
    {
        uint32_t candidate = from_item(cell->item);
        if (index->hops[candidate].number == number) {
            *hop = candidate;
            index->hops[candidate].uses++;
            return true;
        }
    }
    bool again = index->free_hop >= 0;
    size_t at = again ? (size_t)index->free_hop : index->hop_count;
    size_t capacity = index->hop_capacity;
    if (at >= UINT32_MAX - 1 || !table_reserve(&index->hop_numbers) ||
        !grow((void **)&index->hops, &index->hop_capacity, at, sizeof(Hop))) {
        PyErr_NoMemory();
        return false;
    }
    if (index->hop_capacity != capacity) {
        size_t words = (index->hop_capacity + 63) / 64;
        uint64_t *found = PyMem_Realloc(index->found, words * sizeof(uint64_t));
        if (found == NULL) {
            index->hop_capacity = capacity; /* the larger array is harmless */
            PyErr_NoMemory();
            return false;
        }
        index->found = found;
    }
    if (again) {
        index->free_hop = index->hops[at].number;
    }
    index->hop_count += !again;
    index->hops_in_use++;
    index->highest_hop = number > index->highest_hop ? number : index->highest_hop;
    index->hops[at] = (Hop){number, 1, NULL};
    *hop = (uint32_t)at;
    table_put(&index->hop_numbers, hash, as_item(at));
    return true;
}

static void
hop_release(Index *index, uint32_t hop)
{
    Hop *known = &index->hops[hop];
    if (--known->uses == 0) {
        table_remove(&index->hop_numbers, hash_word((uint64_t)known->number),
                     as_item(hop));
        index->hops_in_use--;
        known->number = index->free_hop;
        index->free_hop = hop;
    }
}

#endif
