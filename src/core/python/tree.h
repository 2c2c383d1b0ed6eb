// Nested containers as one message: their leaves' memory, and a fingerprint of keys, types and shapes.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "payload.h"

namespace corral {

// Teach the core to walk containers of exactly this type: `entries` is the attribute that holds a dict of their
// entries, `batch_size` the one that holds a tuple of the dimensions that these share. `others` are those that `survey`
// looks at besides; it takes a container for plain only where each is missing, None or a string. Without any it takes
// none for plain.
void register_container(nanobind::type_object type, nanobind::str entries, nanobind::str batch_size,
                        nanobind::tuple others);

// What a tree looks like. Batch sizes are apart: those of the senders must agree with each other, not with those of
// the tree that receives their rows.
struct Print {
    Fingerprint structure;  // keys, types, shapes
    uint64_t batches = 0;   // batch sizes

    Fingerprint whole() const { return {structure.low, structure.high ^ batches}; }
};

struct Rows {
    Print print;              // of one row: the leading dimension is left out
    std::vector<Spans> rows;  // where each row's bytes lie
};

// All leaves as one message. Returns false with a Python exception set.
bool flatten(PyObject* tree, Payload& payload, Fingerprint& fingerprint);
// The leaves' rows, for writing: `count` of them. Returns false with a Python exception set, or, without one, if a
// leaf has another leading dimension, or if it takes a closer look to see that no two leaves share memory.
bool flatten_rows(PyObject* tree, int64_t count, Payload& payload, Rows& rows);
// What the tree looks like, containers' types and attributes included, and its leaves in order, as (bytes, list), where
// all of them are plain: exactly of the type `array` or torch's, of common dtypes, in host memory as they are. None for
// anything else; for writing also where a leaf is read-only, or it takes a closer look to see that no two share memory.
nanobind::object survey(PyObject* tree, PyTypeObject* array, bool write);

// Whether surely no two arrays of a list share memory: each lies behind another as a whole.
bool lie_apart(PyObject* arrays);

}  // namespace corral
