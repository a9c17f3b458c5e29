/* NativeIndex: the filter index in C, with the semantics of motet.matching.python_index.
 *
 * This file is the Python side: arguments, answers, errors, references. The parts, in order:
 *   native/common.h   memory, hashing, hash tables
 *   native/point.h    values as keys of one total order
 *   native/clause.h   constraints as sets of intervals; compiled from Python
 *   native/probe.h    compact clauses for matching events
 *   native/index.h    the data structures of the index, and its constants
 *   native/cells.h    cells of the value range, rows, learning
 *   native/names.h    attributes and hops by name
 *   native/block.h    slots and columns of reject rows
 *   native/home.h     where clauses are stored; adding and removing
 *   native/event.h    events, read from dicts
 *   native/scan.h     matching events; overlap and covering
 *   native/body.h     matching encoded events
 */
#include "native/body.h"

/* ── arguments and answers ────────────────────────────────────────────────────────────── */

static bool
read_natural(PyObject *object, const char *what, int64_t *number)
{
    PyObject *whole = PyNumber_Index(object);
    if (whole == NULL) {
        return false;
    }
    int overflow;
    *number = PyLong_AsLongLongAndOverflow(whole, &overflow);
    Py_DECREF(whole);
    if (overflow > 0) {
        PyErr_Format(PyExc_OverflowError, "%s must be below 2**63", what);
        return false;
    }
    if (overflow < 0 || *number < 0) {
        PyErr_Format(PyExc_ValueError, "%s must not be negative", what);
        return false;
    }
    return true;
}

static bool
expect_dict(PyObject *attributes)
{
    if (PyDict_CheckExact(attributes)) {
        return true;
    }
    PyErr_Format(PyExc_TypeError, "attributes must be a dict, not %.100s",
                 Py_TYPE(attributes)->tp_name);
    return false;
}

enum { MOST_SPARE = 4096 }; /* findings to keep room for between queries */

static void
answer_free(Answer *answer)
{
    for (size_t i = 0; i < answer->count; i++) {
        Py_XDECREF(answer->findings[i].filter);
    }
    PyMem_Free(answer->findings);
}

/* Sorts by key. Shell sort: answers are short, and calls of a comparison would cost too much. */
static void
sort_findings(Finding *findings, size_t count)
{
    size_t gap = 1;
    while (gap < count / 3) {
        gap = 3 * gap + 1;
    }
    for (; gap > 0; gap /= 3) {
        for (size_t i = gap; i < count; i++) {
            Finding finding = findings[i];
            size_t j = i;
            for (; j >= gap && findings[j - gap].key > finding.key; j -= gap) {
                findings[j] = findings[j - gap];
            }
            findings[j] = finding;
        }
    }
}

/* The keys found. The findings must still be freed. */
static PyObject *
keys_of(const Answer *answer)
{
    if (answer->out_of_memory) {
        return PyErr_NoMemory();
    }
    sort_findings(answer->findings, answer->count);
    PyObject *keys = PyList_New((Py_ssize_t)answer->count);
    for (size_t i = 0; keys != NULL && i < answer->count; i++) {
        PyObject *key = PyLong_FromLongLong(answer->findings[i].key);
        if (key == NULL) {
            Py_CLEAR(keys);
        }
        else {
            PyList_SET_ITEM(keys, (Py_ssize_t)i, key);
        }
    }
    return keys;
}

/* A mask too wide for 64 bits, from its bytes. */
static PyObject *
wide_mask(const Index *index)
{
    int64_t highest = 0;
    for (size_t hop = 0; hop < index->hop_count; hop++) {
        if (hop_is_found(index, (uint32_t)hop) && index->hops[hop].number > highest) {
            highest = index->hops[hop].number;
        }
    }
    if ((uint64_t)highest / 8 >= (uint64_t)PY_SSIZE_T_MAX) {
        return PyErr_NoMemory();
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(highest / 8 + 1));
    if (bytes == NULL) {
        return NULL;
    }
    char *mask = PyBytes_AS_STRING(bytes);
    memset(mask, 0, (size_t)(highest / 8 + 1));
    for (size_t hop = 0; hop < index->hop_count; hop++) {
        if (hop_is_found(index, (uint32_t)hop)) {
            int64_t number = index->hops[hop].number;
            mask[number / 8] = (char)(mask[number / 8] | 1 << number % 8);
        }
    }
    PyObject *result = PyObject_CallMethod((PyObject *)&PyLong_Type, "from_bytes", "Os", bytes,
                                           "little");
    Py_DECREF(bytes);
    return result;
}

static PyObject *
mask_of(const Index *index, const Answer *answer)
{
    if (answer->hops_found == 0) {
        return PyLong_FromLong(0);
    }
    if (index->highest_hop >= 64) {
        return wide_mask(index);
    }
    uint64_t mask = 0;
    for (size_t word = 0; word < (index->hop_count + 63) / 64; word++) {
        for (uint64_t left = index->found[word]; left; left &= left - 1) {
            mask |= UINT64_C(1) << index->hops[word * 64 + (size_t)__builtin_ctzll(left)].number;
        }
    }
    return PyLong_FromUnsignedLongLong(mask);
}

/* The clauses of a filter, as a new tuple. Runs Python code, so call it first. */
static PyObject *
clauses_of(PyObject *filter)
{
    PyObject *clauses = PyObject_GetAttrString(filter, "clauses");
    if (clauses != NULL && !PyTuple_Check(clauses)) {
        PyErr_SetString(PyExc_TypeError, "the clauses of a filter must be a tuple");
        Py_CLEAR(clauses);
    }
    return clauses;
}

/* ── adding and removing ──────────────────────────────────────────────────────────────── */

/* Compiles all clauses that can match. Returns their number, or -1. */
static Py_ssize_t
compile_clauses(Index *index, PyObject *clauses, bool intern, Clause **into)
{
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(clauses); i++) {
        bool fine = compile_clause(index, PyTuple_GET_ITEM(clauses, i), intern, &into[count]);
        if (fine && intern && into[count] != NULL && !probe_new(into[count])) {
            PyErr_NoMemory();
            fine = false;
            count++;
        }
        if (!fine) {
            while (count-- > 0) {
                if (intern) {
                    clause_release(index, into[count]);
                }
                PyMem_Free(into[count]);
            }
            return -1;
        }
        count += into[count] != NULL;
    }
    return count;
}

static bool
index_add(Index *index, int64_t key, PyObject *filter, PyObject *clauses, int64_t hop)
{
    Entry *entry = PyMem_Calloc(
        1, sizeof(Entry) + (size_t)PyTuple_GET_SIZE(clauses) * sizeof(Clause *));
    if (entry == NULL || !table_reserve(&index->entries)) {
        PyMem_Free(entry);
        PyErr_NoMemory();
        return false;
    }
    if (!hop_acquire(index, hop, &entry->hop)) {
        PyMem_Free(entry);
        return false;
    }
    Py_ssize_t count = compile_clauses(index, clauses, true, entry->clauses);
    if (count < 0) {
        hop_release(index, entry->hop);
        PyMem_Free(entry);
        return false;
    }
    entry->key = key;
    entry->count = (uint32_t)count;
    entry->filter = Py_NewRef(filter);
    for (Py_ssize_t i = 0; i < count; i++) {
        Clause *clause = entry->clauses[i];
        clause->entry = entry;
        clause->key = key;
        clause->hop = entry->hop;
        clause->in_union = count > 1;
        clause->probe->key = key;
        clause->probe->hop = entry->hop;
        clause->probe->in_union = count > 1;
    }
    index_take(index, entry);
    return true;
}

PyDoc_STRVAR(add_doc, "add($self, /, key, filter, hop)\n--\n\n"
                      "Add a filter. A key that is present is a ValueError.");

static PyObject *
native_add(Index *index, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"key", "filter", "hop", NULL};
    PyObject *key_object, *filter, *hop_object;
    int64_t key, hop;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OOO:add", names, &key_object, &filter,
                                     &hop_object) ||
        !read_natural(key_object, "a key", &key) || !read_natural(hop_object, "a hop", &hop)) {
        return NULL;
    }
    PyObject *clauses = clauses_of(filter);
    if (clauses == NULL) {
        return NULL;
    }
    bool added = false;
    if (find_entry(index, key) != NULL) {
        PyErr_Format(PyExc_ValueError, "key %lld is in the index already", (long long)key);
    }
    else {
        added = index_add(index, key, filter, clauses, hop);
    }
    Py_DECREF(clauses);
    return added ? Py_NewRef(Py_None) : NULL;
}

/* The entry under a key of any type, or NULL without an error. */
static Entry *
entry_under(const Index *index, PyObject *key)
{
    if (!PyLong_Check(key)) {
        return NULL;
    }
    int overflow;
    int64_t number = PyLong_AsLongLongAndOverflow(key, &overflow);
    return overflow ? NULL : find_entry(index, number);
}

PyDoc_STRVAR(remove_doc, "remove($self, key, /)\n--\n\n"
                         "Remove what was added under the key; KeyError when there is nothing.");

static PyObject *
native_remove(Index *index, PyObject *key)
{
    Entry *entry = entry_under(index, key);
    if (entry == NULL) {
        PyErr_SetObject(PyExc_KeyError, key);
        return NULL;
    }
    PyObject *filter = entry->filter;
    index_release(index, entry);
    PyMem_Free(entry);
    Py_DECREF(filter);
    Py_RETURN_NONE;
}

static Py_ssize_t
native_length(Index *index)
{
    return (Py_ssize_t)index->entries.used;
}

static int
native_contains(Index *index, PyObject *key)
{
    return entry_under(index, key) != NULL;
}

/* ── events ───────────────────────────────────────────────────────────────────────────── */

PyDoc_STRVAR(match_doc, "match($self, attributes, /)\n--\n\n"
                        "The keys of the filters that match, ascending.");

static PyObject *
native_match(Index *index, PyObject *attributes)
{
    Answer answer = {0};
    if (!expect_dict(attributes) || !event_read(index, attributes)) {
        return NULL;
    }
    answer.findings = index->spare;
    answer.capacity = index->spare_capacity;
    index->spare = NULL; /* building the answer may run Python code, which may query again */
    index->spare_capacity = 0;
    match_event(index, &answer);
    PyObject *keys = keys_of(&answer);
    if (index->spare == NULL && answer.capacity <= MOST_SPARE) {
        index->spare = answer.findings;
        index->spare_capacity = answer.capacity;
    }
    else {
        PyMem_Free(answer.findings);
    }
    return keys;
}

PyDoc_STRVAR(hops_doc, "hops($self, attributes, /)\n--\n\n"
                       "The hops of the filters that match, as a mask of bits.");

static PyObject *
native_hops(Index *index, PyObject *attributes)
{
    Answer answer = {.wants_hops = true};
    if (!expect_dict(attributes) || !event_read(index, attributes)) {
        return NULL;
    }
    match_event(index, &answer);
    return mask_of(index, &answer);
}

PyDoc_STRVAR(hops_encoded_doc,
             "hops_encoded($self, body, /)\n--\n\n"
             "Like hops, for the encoded body of an event; None when it is not well formed.");

static PyObject *
native_hops_encoded(Index *index, PyObject *body)
{
    Answer answer = {.wants_hops = true};
    Py_buffer buffer;
    if (PyObject_GetBuffer(body, &buffer, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    bool well_formed = event_read_encoded(index, buffer.buf, (size_t)buffer.len);
    if (well_formed) {
        match_event(index, &answer);
    }
    PyObject *mask = well_formed ? mask_of(index, &answer) : Py_NewRef(Py_None);
    PyBuffer_Release(&buffer);
    return mask;
}

/* ── filters ──────────────────────────────────────────────────────────────────────────── */

/* Lets Python decide where C cannot. The index may change meanwhile; the answer does not. */
static bool
settle(Answer *answer, PyObject *covers, Relation relation, PyObject *filter)
{
    size_t kept = 0;
    bool fine = true;
    for (size_t i = 0; i < answer->count; i++) {
        Finding finding = answer->findings[i];
        if (finding.filter != NULL && fine) {
            PyObject *wide = relation == COVERING ? finding.filter : filter;
            PyObject *narrow = relation == COVERING ? filter : finding.filter;
            PyObject *verdict = PyObject_CallFunctionObjArgs(covers, wide, narrow, NULL);
            int is_so = verdict == NULL ? -1 : PyObject_IsTrue(verdict);
            Py_XDECREF(verdict);
            fine = is_so >= 0;
            if (is_so <= 0) {
                Py_DECREF(finding.filter);
                continue;
            }
        }
        answer->findings[kept++] = finding;
    }
    answer->count = kept;
    return fine;
}

/* Queries a filter. On failure returns false with an error set and nothing to free. */
static bool
ask(Index *index, Relation relation, PyObject *filter, Answer *answer)
{
    PyObject *objects = clauses_of(filter);
    if (objects == NULL) {
        return false;
    }
    Clause **clauses = PyMem_Calloc((size_t)PyTuple_GET_SIZE(objects) + 1, sizeof(Clause *));
    Py_ssize_t count = -1;
    if (clauses == NULL) {
        PyErr_NoMemory();
    }
    else {
        count = compile_clauses(index, objects, false, clauses);
    }
    Py_DECREF(objects);
    if (count >= 0) {
        query_filter(index, relation, clauses, (size_t)count, answer);
        for (Py_ssize_t i = 0; i < count; i++) {
            PyMem_Free(clauses[i]);
        }
    }
    PyMem_Free(clauses);
    return count >= 0;
}

static PyObject *
keys_in_relation(Index *index, Relation relation, PyObject *filter)
{
    Answer answer = {0};
    if (!ask(index, relation, filter, &answer)) {
        return NULL;
    }
    PyObject *covers = Py_NewRef(index->covers);
    bool settled = settle(&answer, covers, relation, filter);
    Py_DECREF(covers);
    PyObject *keys = settled ? keys_of(&answer) : NULL;
    answer_free(&answer);
    return keys;
}

PyDoc_STRVAR(overlapping_doc, "overlapping($self, filter, /)\n--\n\n"
                              "The keys of the filters that overlap with this one, ascending.");

static PyObject *
native_overlapping(Index *index, PyObject *filter)
{
    return keys_in_relation(index, OVERLAPPING, filter);
}

PyDoc_STRVAR(overlapping_hops_doc,
             "overlapping_hops($self, filter, /)\n--\n\n"
             "The hops of the filters that overlap with this one, as a mask of bits.");

static PyObject *
native_overlapping_hops(Index *index, PyObject *filter)
{
    Answer answer = {.wants_hops = true};
    if (!ask(index, OVERLAPPING, filter, &answer)) {
        return NULL;
    }
    return mask_of(index, &answer);
}

PyDoc_STRVAR(covering_doc, "covering($self, filter, /)\n--\n\n"
                           "The keys of the filters that cover this one, ascending.");

static PyObject *
native_covering(Index *index, PyObject *filter)
{
    return keys_in_relation(index, COVERING, filter);
}

PyDoc_STRVAR(covered_doc, "covered($self, filter, /)\n--\n\n"
                          "The keys of the filters that this one covers, ascending.");

static PyObject *
native_covered(Index *index, PyObject *filter)
{
    return keys_in_relation(index, COVERED, filter);
}

/* ── the type ─────────────────────────────────────────────────────────────────────────── */

static PyObject *
native_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"covers", NULL};
    PyObject *covers;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O:NativeIndex", names, &covers)) {
        return NULL;
    }
    Index *index = (Index *)type->tp_alloc(type, 0); /* all zero */
    if (index != NULL) {
        index->covers = Py_NewRef(covers);
        index->free_hop = -1;
    }
    return (PyObject *)index;
}

static void
native_dealloc(Index *index)
{
    PyTypeObject *type = Py_TYPE(index);
    index_clear(index);
    Py_CLEAR(index->covers);
    type->tp_free(index);
    Py_DECREF(type);
}

static PyMethodDef native_methods[] = {
    {"add", (PyCFunction)(void (*)(void))native_add, METH_VARARGS | METH_KEYWORDS, add_doc},
    {"remove", (PyCFunction)native_remove, METH_O, remove_doc},
    {"match", (PyCFunction)native_match, METH_O, match_doc},
    {"hops", (PyCFunction)native_hops, METH_O, hops_doc},
    {"hops_encoded", (PyCFunction)native_hops_encoded, METH_O, hops_encoded_doc},
    {"overlapping", (PyCFunction)native_overlapping, METH_O, overlapping_doc},
    {"overlapping_hops", (PyCFunction)native_overlapping_hops, METH_O, overlapping_hops_doc},
    {"covering", (PyCFunction)native_covering, METH_O, covering_doc},
    {"covered", (PyCFunction)native_covered, METH_O, covered_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(native_doc, "NativeIndex(covers)\n--\n\n"
                         "A FilterIndex in C. `covers` decides what unions of clauses cover.");

/* No garbage collection: filters never refer to an index, and traversing a million entries would
 * be slow. */
static PyType_Slot native_slots[] = {
    {Py_tp_doc, (void *)native_doc},
    {Py_tp_new, native_new},
    {Py_tp_dealloc, native_dealloc},
    {Py_tp_methods, native_methods},
    {Py_sq_length, native_length},
    {Py_sq_contains, native_contains},
    {0, NULL},
};

static PyType_Spec native_spec = {
    .name = "motet.matching._native.NativeIndex",
    .basicsize = sizeof(Index),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = native_slots,
};

static int
module_exec(PyObject *module)
{
    PyDateTime_IMPORT;
    if (PyDateTimeAPI == NULL) {
        return -1;
    }
    PyObject *word = PyUnicode_FromString("motet");
    if (word == NULL) {
        return -1;
    }
    hash_seed = (uint64_t)PyObject_Hash(word);
    Py_DECREF(word);
    PyObject *type = PyType_FromModuleAndSpec(module, &native_spec, NULL);
    if (type == NULL) {
        return -1;
    }
    int status = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return status;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "motet.matching._native",
    .m_doc = "The filter index in C.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    return PyModuleDef_Init(&module_definition);
}
