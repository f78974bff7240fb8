// What both halves of the module share.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <exception>

#ifdef Py_GIL_DISABLED
#error "written for an interpreter with a lock"
#endif

template <typename F>
PyObject* guarded(F&& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

inline bool counts_are(Py_ssize_t given, Py_ssize_t wanted) {
  if (given != wanted) PyErr_Format(PyExc_TypeError, "takes %zd arguments, not %zd", wanted, given);
  return given == wanted;
}

// What a capsule of ours remembers may be asked whether it still holds: 1, 0, or -1 with an error set.
using Check = int (*)(PyObject* capsule);

inline PyObject* checking(PyObject* capsule, Check check) {
  if (capsule != nullptr) PyCapsule_SetContext(capsule, reinterpret_cast<void*>(check));
  return capsule;
}

inline PyObject* answer(int holds) { return holds < 0 ? nullptr : PyBool_FromLong(holds); }

bool begin_watching();  // of dictionaries; once, before anything else of these

PyObject* profile(PyObject*, PyObject* const* args, Py_ssize_t count);
PyObject* watch(PyObject*, PyObject* dicts);
PyObject* unwritten(PyObject*, PyObject* capsule);
PyObject* contents(PyObject*, PyObject* dicts);
PyObject* holds(PyObject*, PyObject* capsule);
PyObject* kinds(PyObject*, PyObject* const* args, Py_ssize_t count);
PyObject* places(PyObject*, PyObject* rows);
PyObject* unchanged(PyObject*, PyObject* checks);
