/* Encoded events: reads the attributes from the msgpack body of an event, without a dict.
 *
 * Reads exactly the bodies that motet.model would accept, [map of attributes, bin payload]. It
 * rejects all others; the caller then uses the slow decoder to find the error.
 */
#ifndef MOTET_BODY_H
#define MOTET_BODY_H

#include "scan.h"

/* As in motet.model.limits. */
#define MAX_ATTRIBUTES 256
#define MAX_NAME_CHARS 128

typedef struct {
    const unsigned char *at, *end;
} Reader;

static inline bool
read_big_endian(Reader *reader, size_t size, uint64_t *value)
{
    if ((size_t)(reader->end - reader->at) < size) {
        return false;
    }
    *value = 0;
    for (size_t i = 0; i < size; i++) {
        *value = *value << 8 | *reader->at++;
    }
    return true;
}

static bool
is_utf8(const unsigned char *text, size_t size)
{
    const unsigned char *end = text + size;
    while (text < end) {
        unsigned char lead = *text++;
        if (lead < 0x80) {
            continue;
        }
        int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
        if (lead < 0xc2 || lead > 0xf4 || end - text < more) {
            return false;
        }
        /* Neither overlong, nor a surrogate, nor beyond U+10FFFF. */
        unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
        unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
        if (*text < low || *text > high) {
            return false;
        }
        for (int i = 1; i < more; i++) {
            if ((text[i] & 0xc0) != 0x80) {
                return false;
            }
        }
        text += more;
    }
    return true;
}

/* The size of a string that starts with this byte; -1 if no string does. */
static int64_t
string_size(Reader *reader, unsigned char lead)
{
    uint64_t size;
    if (lead >= 0xa0 && lead <= 0xbf) {
        return lead & 0x1f;
    }
    if (lead < 0xd9 || lead > 0xdb || !read_big_endian(reader, (size_t)1 << (lead - 0xd9), &size)) {
        return -1;
    }
    return (int64_t)size;
}

static bool
read_string(Reader *reader, unsigned char lead, Point *point)
{
    int64_t size = string_size(reader, lead);
    if (size < 0 || size > reader->end - reader->at || size >= INT32_MAX ||
        !is_utf8(reader->at, (size_t)size)) {
        return false;
    }
    *point = text_point((const char *)reader->at, (size_t)size);
    reader->at += size;
    return true;
}

/* A timestamp of 4, 8 or 12 bytes, rounded to microseconds like in the decoder of the model. */
static bool
read_timestamp(Reader *reader, size_t size, Point *point)
{
    uint64_t type, seconds, nanoseconds = 0;
    if (!read_big_endian(reader, 1, &type) || type != 0xff) {
        return false;
    }
    if (size == 12 && !read_big_endian(reader, 4, &nanoseconds)) {
        return false;
    }
    if (!read_big_endian(reader, size == 4 ? 4 : 8, &seconds)) {
        return false;
    }
    if (size == 8) {
        nanoseconds = seconds >> 34;
        seconds &= (UINT64_C(1) << 34) - 1;
    }
    int64_t whole = (int64_t)seconds;
    if (nanoseconds > 999999999 || whole < FIRST_US / 1000000 || whole > LAST_US / 1000000) {
        return false;
    }
    int64_t microseconds = whole * 1000000 + ((int64_t)nanoseconds + 500) / 1000;
    *point = scalar_from_int(TIME, microseconds);
    return microseconds <= LAST_US;
}

static bool
read_encoded_int(Reader *reader, unsigned char lead, Point *point)
{
    uint64_t bits;
    bool is_signed = lead >= 0xd0;
    size_t size = (size_t)1 << (lead & 3);
    if (!read_big_endian(reader, size, &bits) || (!is_signed && bits > INT64_MAX)) {
        return false;
    }
    unsigned unused = 64 - 8 * (unsigned)size;
    int64_t value = is_signed ? (int64_t)(bits << unused) >> unused : (int64_t)bits;
    *point = scalar_from_int(NUMBER, value);
    return true;
}

static bool
read_encoded_float(Reader *reader, size_t size, Point *point)
{
    uint64_t bits;
    double number;
    if (!read_big_endian(reader, size, &bits)) {
        return false;
    }
    if (size == 8) {
        memcpy(&number, &bits, sizeof number);
    }
    else {
        uint32_t half = (uint32_t)bits;
        float narrow;
        memcpy(&narrow, &half, sizeof narrow);
        number = (double)narrow;
    }
    *point = scalar(isnan(number) ? NAN_KIND : NUMBER, number, 0);
    return true;
}

static bool
read_encoded_value(Reader *reader, Point *point)
{
    uint64_t size;
    if (reader->at == reader->end) {
        return false;
    }
    unsigned char lead = *reader->at++;
    if (lead < 0x80 || lead >= 0xe0) {
        *point = scalar_from_int(NUMBER, lead < 0x80 ? lead : (int64_t)lead - 256);
        return true;
    }
    switch (lead) {
        case 0xc2:
        case 0xc3:
            *point = scalar(BOOL, lead == 0xc3, 0);
            return true;
        case 0xc7: /* an extension of any size */
            return read_big_endian(reader, 1, &size) &&
                   (size == 4 || size == 8 || size == 12) && read_timestamp(reader, size, point);
        case 0xca:
            return read_encoded_float(reader, 4, point);
        case 0xcb:
            return read_encoded_float(reader, 8, point);
        case 0xcc:
        case 0xcd:
        case 0xce:
        case 0xcf:
        case 0xd0:
        case 0xd1:
        case 0xd2:
        case 0xd3:
            return read_encoded_int(reader, lead, point);
        case 0xd6:
            return read_timestamp(reader, 4, point);
        case 0xd7:
            return read_timestamp(reader, 8, point);
        default:
            return read_string(reader, lead, point);
    }
}

static bool
read_head(Reader *reader, uint64_t *entries)
{
    uint64_t lead;
    if (!read_big_endian(reader, 1, &lead) || lead != 0x92 || !read_big_endian(reader, 1, &lead)) {
        return false;
    }
    if (lead >= 0x80 && lead <= 0x8f) {
        *entries = lead & 0x0f;
        return true;
    }
    return (lead == 0xde && read_big_endian(reader, 2, entries)) ||
           (lead == 0xdf && read_big_endian(reader, 4, entries));
}

static bool
is_payload(Reader *reader)
{
    uint64_t lead, size;
    return read_big_endian(reader, 1, &lead) && lead >= 0xc4 && lead <= 0xc6 &&
           read_big_endian(reader, (size_t)1 << (lead - 0xc4), &size) &&
           size == (uint64_t)(reader->end - reader->at);
}

/* Attribute names as motet.model allows them: letters, digits, '_' and '.', the first one a letter
 * or '_'. */
static bool
is_name(const unsigned char *text, size_t size)
{
    if (size == 0 || size > MAX_NAME_CHARS) {
        return false;
    }
    for (size_t i = 0; i < size; i++) {
        unsigned char c = text[i];
        bool letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
        bool later = (c >= '0' && c <= '9') || c == '.';
        if (!letter && c != '_' && !(later && i > 0)) {
            return false;
        }
    }
    return true;
}

/* Whether the body is valid; if so, the event has been read. */
static bool
event_read_encoded(Index *index, const void *body, size_t size)
{
    Reader reader = {body, (const unsigned char *)body + size};
    uint64_t entries;
    if (!read_head(&reader, &entries) || entries > MAX_ATTRIBUTES) {
        return false;
    }
    for (; entries > 0; entries--) {
        Point name, value;
        uint32_t number;
        if (reader.at == reader.end) {
            goto malformed;
        }
        unsigned char lead = *reader.at++;
        if (!read_string(&reader, lead, &name) ||
            !is_name((const unsigned char *)name.text, (size_t)name.fine) ||
            !read_encoded_value(&reader, &value)) {
            goto malformed;
        }
        if (find_attribute(index, name, &number)) {
            event_put(index, number, &value);
        }
    }
    if (is_payload(&reader)) {
        return true;
    }
malformed:
    event_clear(index);
    return false;
}

#endif
