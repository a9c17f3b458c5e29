/* The index: entries, hops, attributes, homes, and blocks of reject rows.
 *
 * Each clause has one home, chosen when it is added, and an event visits only the homes that it
 * may match:
 *   - the home of a point: clauses that want one value of an attribute with many values;
 *   - the home of an attribute: clauses that want an attribute that few clauses constrain;
 *   - the home of a hop: skipped as soon as that hop is found;
 *   - the common home: all others, for every event.
 *
 * A home keeps a few clauses loose, tried one by one; more clauses are in blocks. A
 * block has a slot for each clause and, per attribute they constrain, a column: a row of bits for
 * absent, one for NaN, and one per cell of the value range. A set bit means that the clause in
 * this slot rejects such values. The last row marks the clauses that constrain the attribute.
 * Blocks double up to 16384 slots, so that few clauses need little room, and long rows stream
 * well. A constraint on an attribute that is rare in the index need not be in a column: rows only
 * rule clauses out, and the remaining ones are verified.
 * The cells of an attribute are the same in all blocks. They are learnt again, from the current
 * clauses, after half as many changes as there are clauses.
 */
#ifndef MOTET_INDEX_H
#define MOTET_INDEX_H

#include "probe.h"

enum {
    MOST_WORDS = 256,        /* of 64 bits per row */
    SMALL_WORDS = 2,         /* blocks up to here have columns for all attributes */
    MOST_BOUNDS = 64,        /* learnt per attribute, on top of the fixed ones */
    FIXED_BOUNDS = 5,        /* where families start, and true */
    LEAST_CHANGES = 16,      /* before cells are learnt */
    MOST_SAMPLES = 4096,     /* to learn from */
    MOST_LOOSE = 16,         /* clauses tried one by one, before a home has blocks */
    HOP_HOME_AT = 256,       /* clauses of a hop, before it gets a home of its own */
    RARE_AT = 1024,          /* clauses in the index, before rare attributes get homes */
    RARE = 16,               /* rare: at most one in this many clauses constrains it */
    SPARSE = 64,             /* too rare for columns outside of its home */
    DIVERSE_AT = 1024,       /* points seen of an attribute, before points get homes */
    DIVERSE = 256,           /* … if at most one in this many pairs of clauses shares a point */
    ABSENT_ROW = 0,
    NAN_ROW = 1,
};

typedef struct {
    uint64_t *rows; /* each of block->words words */
    uint32_t attribute;
    uint32_t users; /* clauses of the block that have a bit in the last row */
    uint32_t place; /* of the block in the attribute's list of blocks */
} Column;

struct Block {
    uint32_t words;
    uint32_t top; /* words from here on are empty */
    uint32_t live;
    uint32_t hidden;  /* constraints that are in no column */
    uint64_t *alive;  /* one row */
    uint64_t *unions; /* one row: clauses of filters that have several */
    Clause **clauses;
    Probe **probes; /* of the clauses */
    uint32_t *hops;
    Column *columns;
    size_t column_count, column_capacity;
    Home *home;
    Block *next, *previous; /* in the home: blocks with free slots come first */
};

typedef enum { COMMON, OF_HOP, OF_ATTRIBUTE, OF_POINT } HomeKind;

struct Home {
    Block *blocks, *last_block;
    Clause *loose;
    uint32_t loose_count;
    uint32_t owner; /* attribute or hop */
    HomeKind kind;
    Point point;
};

/* The bounds of one family except its first, as plain doubles: a search reads two cache lines. */
typedef struct {
    double rungs[8]; /* the last of each eight steps */
    double steps[MOST_BOUNDS];
} Ladder;

typedef struct {
    /* Fields used for every event come first, to share cache lines. */
    PyObject *object; /* its name, a str; strong */
    Ladder *ladders;  /* to find a place among bounds, one per family; NULL: nothing learnt */
    size_t block_count, block_capacity;
    Home *home;
    Table points; /* homes by point */
    uint32_t starts[FAMILIES + 1]; /* where in bounds each family begins */
    uint32_t row_count;
    Point *bounds;     /* sorted; the cells lie between them */
    Point name;        /* as UTF-8, borrowed from the object */
    size_t uses;       /* constraints in the index */
    size_t members;    /* … of clauses in blocks */
    size_t changes;    /* members added since the cells were learnt */
    Block **blocks;    /* that have a column for it */
    bool is_diverse;   /* its points get homes */
} Attribute;

typedef struct {
    int64_t number;
    size_t uses;
    Home *home;
} Hop;

struct Entry {
    int64_t key;
    PyObject *filter;
    uint64_t stamp; /* the query that last found it */
    uint32_t hop;
    uint32_t count;
    Clause *clauses[];
};

struct Index {
    PyObject_HEAD
    PyObject *covers; /* decides for unions whether one filter covers another */
    Table entries, hop_numbers;
    Table names;   /* attributes by the hash of the UTF-8 */
    Table objects; /* … and by the hash that Python keeps with a str */
    Attribute **attributes; /* by number; NULL: free */
    size_t attribute_count, attribute_capacity;
    uint32_t *free_attributes; /* a stack of reusable numbers */
    size_t free_attribute_count;
    Hop *hops; /* by number; uses == 0: free, and number is the next free one */
    size_t hop_count, hop_capacity, hops_in_use;
    int64_t free_hop; /* -1: none */
    int64_t highest_hop; /* ever */
    Home common;
    size_t clause_count, union_count, void_count;
    uint64_t stamp;
    /* The event that was read, by attribute: its row (0: absent) and its value. */
    uint32_t *hit;
    Point *values;
    Said *saids; /* … the same for probes */
    uint32_t *present; /* the attributes of the event */
    size_t present_count;
    bool has_homes; /* … of which some have homes, or points with homes */
    uint64_t *found; /* hops found, as bits */
    void *spare;     /* room for the next answer; NULL: none */
    size_t spare_capacity;
};

#endif
