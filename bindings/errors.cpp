#include "errors.h"

#include <nanobind/stl/string.h>

namespace layercast::bindings {

nb::object to_exception(const Error& error) {
  const nb::module_ errors = nb::module_::import_("layercast.errors");
  const auto code = static_cast<std::uint64_t>(error.code);
  const nb::object fallback = errors.attr("GroupError");
  const nb::object type = errors.attr("BY_CODE").attr("get")(code, fallback);
  nb::dict attributes;
  attributes["code"] = code;
  attributes["rank"] = error.rank;
  attributes["pid"] = error.pid;
  attributes["epoch"] = error.epoch;
  attributes["layer"] = error.layer;
  attributes["expert"] = error.expert;
  return type(error.message, **attributes);
}

void register_translator() {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Interrupted&) {
      if (!PyErr_Occurred()) PyErr_SetNone(PyExc_KeyboardInterrupt);
    } catch (const Error& error) {
      const nb::object exception = to_exception(error);
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
    }
  });
}

void rehearse_failure() {
  const nb::object failing = nb::cpp_function([] { refuse(Code::kState, "a rehearsal"); });
  if (PyObject* result = PyObject_CallNoArgs(failing.ptr()); result != nullptr) {
    Py_DECREF(result);
  } else {
    PyErr_Clear();
  }
}

}  // namespace layercast::bindings
