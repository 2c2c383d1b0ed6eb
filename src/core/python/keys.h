// The keys of nested containers.
#pragma once

#include <nanobind/nanobind.h>

namespace corral {

// Teach the core to read keys: `entries` is the attribute that holds a container's dict of entries, `kinds` tells
// whether entries of a class are containers, and `elsewhere` is called for containers without such a dict, with a
// container, a tuple that goes before its keys, `nested`, `leaves_only` and the list to which it appends.
void register_keys(nanobind::str entries, nanobind::dict kinds, nanobind::callable elsewhere);

// A container's keys: also those within its containers, as tuples, if `nested`; without those of containers, if
// `leaves_only`. What is in a container comes before its own key.
nanobind::list collect_keys(nanobind::handle container, bool nested, bool leaves_only);
Py_ssize_t count_keys(nanobind::handle container, bool nested, bool leaves_only);

}  // namespace corral
