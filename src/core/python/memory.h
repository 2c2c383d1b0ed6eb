// What engines that are written in Python need of the core: see memory.cpp.
#pragma once

#include <nanobind/nanobind.h>

namespace corral {

void register_memory(nanobind::module_& m);

}  // namespace corral
