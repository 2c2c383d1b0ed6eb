// Nested containers as one message: their leaves' memory, and a fingerprint of keys, types and shapes.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "payload.h"

namespace corral {

// Teach the core to walk containers of exactly this type: `attribute` holds a dict of their entries.
void register_container(nanobind::type_object type, nanobind::str attribute);

struct Rows {
    Fingerprint fingerprint;  // of one row: the leading dimension is left out
    std::vector<Spans> rows;  // where each row's bytes lie
};

// All leaves as one message. Returns false with a Python exception set.
bool flatten(PyObject* tree, Payload& payload, Fingerprint& fingerprint);
// The leaves' rows, for writing: `count` of them. Returns false with a Python exception set, or, without one, if a
// leaf has another leading dimension.
bool flatten_rows(PyObject* tree, int64_t count, Payload& payload, Rows& rows);

}  // namespace corral
