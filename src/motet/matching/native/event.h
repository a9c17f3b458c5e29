/* Events: the value of each attribute, read from a dict. */
#ifndef MOTET_EVENT_H
#define MOTET_EVENT_H

#include "home.h"

static void
event_clear(Index *index)
{
    for (size_t i = 0; i < index->present_count; i++) {
        index->hit[index->present[i]] = ABSENT_ROW;
        index->saids[index->present[i]] = (Said){0, KIND_ABSENT, false};
    }
    index->present_count = 0;
    index->has_homes = false;
}

/* Records what all kinds of values share, and resolves the number of the attribute. */
MOTET_INLINE const Attribute *
event_note(Index *index, uint32_t number)
{
    const Attribute *attribute = index->attributes[number];
    if (index->hit[number] == ABSENT_ROW) {
        index->present[index->present_count++] = number;
    }
    index->has_homes |= attribute->home != NULL || attribute->points.used > 0;
    return attribute;
}

/* Values are stored field by field: copying a whole Point right after writing its fields would
 * stall until they are stored. */
MOTET_INLINE void
event_put_scalar(Index *index, uint32_t number, int family, double value, int32_t fine)
{
    const Attribute *attribute = event_note(index, number);
    Point *point = &index->values[number];
    Said *said = &index->saids[number];
    value += 0.0; /* no -0.0 */
    point->number = value;
    point->fine = fine;
    point->family = (uint8_t)family;
    said->kind = KIND_OF(family);
    if (family == NAN_KIND) {
        index->hit[number] = NAN_ROW;
        said->key = 0;
        said->inexact = false;
        return;
    }
    said->key = scalar_key(value);
    said->inexact = fine != 0;
    /* Without blocks, the cell is not used. */
    uint32_t cell = attribute->block_count ? cell_at(attribute, family, value, point) : 1;
    index->hit[number] = NAN_ROW + cell;
}

MOTET_INLINE void
event_put_text(Index *index, uint32_t number, const char *text, int32_t length)
{
    const Attribute *attribute = event_note(index, number);
    Point *point = &index->values[number];
    Said *said = &index->saids[number];
    uint64_t start = text_start((Point){.text = text, .fine = length, .family = TEXT});
    point->text = text;
    point->fine = length;
    point->family = TEXT;
    said->kind = KIND_OF(TEXT);
    said->key = text_key(start, length);
    said->inexact = length > KEY_BYTES;
    uint32_t cell =
        attribute->block_count ? cell_at(attribute, TEXT, text_step(start), point) : 1;
    index->hit[number] = NAN_ROW + cell;
}

MOTET_INLINE void
event_put_int(Index *index, uint32_t number, int family, int64_t value)
{
    Point point = scalar_from_int(family, value);
    event_put_scalar(index, number, family, point.number, point.fine);
}

static void
event_put(Index *index, uint32_t number, const Point *value)
{
    if (value->family == TEXT) {
        event_put_text(index, number, value->text, value->fine);
    }
    else {
        event_put_scalar(index, number, value->family, value->number, value->fine);
    }
}

/* Any value, with a fast path for the usual types. Text is borrowed. */
MOTET_INLINE bool
event_put_object(Index *index, uint32_t number, PyObject *value)
{
    const PyTypeObject *type = Py_TYPE(value);
    if (type == &PyFloat_Type) {
        double real = PyFloat_AS_DOUBLE(value);
        event_put_scalar(index, number, isnan(real) ? NAN_KIND : NUMBER, real, 0);
        return true;
    }
    if (type == &PyLong_Type) {
        int overflow;
        int64_t whole = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (!overflow) {
            event_put_int(index, number, NUMBER, whole);
            return true;
        }
    }
    else if (type == &PyUnicode_Type && PyUnicode_IS_COMPACT_ASCII(value) &&
             PyUnicode_GET_LENGTH(value) < INT32_MAX) {
        event_put_text(index, number, PyUnicode_DATA(value), (int32_t)PyUnicode_GET_LENGTH(value));
        return true;
    }
    else if (type == PyDateTimeAPI->DateTimeType) {
        int64_t microseconds;
        if (!read_time(value, &microseconds)) {
            return false;
        }
        event_put_int(index, number, TIME, microseconds);
        return true;
    }
    Point point;
    if (!read_value(value, &point)) {
        return false;
    }
    event_put(index, number, &point);
    return true;
}

/* Texts are borrowed from the dict, which does not change until the query is answered. */
static bool
event_read(Index *index, PyObject *attributes)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(attributes, &at, &key, &value)) {
        uint32_t number;
        if (!find_attribute_of_key(index, key, &number)) {
            continue;
        }
        if (!event_put_object(index, number, value)) {
            event_clear(index);
            return false;
        }
    }
    return true;
}

#endif
