// The core's errors as Python's: one translator.
#pragma once

#include <nanobind/nanobind.h>

#include "error.h"

namespace layercast::bindings {

namespace nb = nanobind;

// An instance of the class that `layercast.errors.BY_CODE` names for the error's code.
nb::object to_exception(const Error& error);

// Translates everything the core throws. Where Python has already raised (a signal handler), that stands.
void register_translator();

// Throws an error through all of this and drops it. The first one of a process takes some 100 us to 200 us
// longer than those that follow: better now than when a failure is to be told.
void rehearse_failure();

}  // namespace layercast::bindings
