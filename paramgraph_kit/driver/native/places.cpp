// Places that hold values: global names, variables of closures, functions' code, lists, sets, classes. Whether each
// still holds what it held, by identity; and whether everything else that one call depends on is as it was.

#include "checks.h"

#include <vector>

namespace {

enum class Kind { GLOBAL, CELL, FUNCTION, LIST, SET, CLASS, DICT };

// Nobody is held here: whoever asks holds them, and the garbage collector sees that.
struct Place {
  Kind kind;
  PyObject *target, *key;  // of a class its bases in the place of a key
  std::vector<PyObject*> values;  // of a class or dictionary each key before its value

  bool holds() const;
};

PyObject* or_none(PyObject* value) { return value == nullptr ? Py_None : value; }

// Each that next() gives, until it gives nothing; whether they are the values and no others.
template <typename Next>
bool are(const std::vector<PyObject*>& values, Next next) {
  size_t n = 0;
  for (PyObject* found; (found = next()) != nullptr; ++n) {
    if (n == values.size() || values[n] != found) return false;
  }
  return n == values.size();
}

bool set_holds(PyObject* set, const std::vector<PyObject*>& values) {
  if (PySet_GET_SIZE(set) != static_cast<Py_ssize_t>(values.size())) return false;
  if (values.empty()) return true;
  PyObject* each = PySet_Type.tp_iter(set);  // whatever its class makes of that
  if (each == nullptr) return false;
  const bool all = are(values, [&] {
    PyObject* found = PyIter_Next(each);
    Py_XDECREF(found);  // the set holds it
    return found;
  });
  Py_DECREF(each);
  return all && !PyErr_Occurred();
}

bool dict_holds(PyObject* dict, const std::vector<PyObject*>& values) {
  if (PyDict_Size(dict) * 2 != static_cast<Py_ssize_t>(values.size())) return false;
  PyObject *key, *value;
  size_t n = 0;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value); n += 2) {
    if (values[n] != key || values[n + 1] != value) return false;
  }
  return true;
}

bool Place::holds() const {
  switch (kind) {
    case Kind::GLOBAL:
      return PyDict_GetItemWithError(target, key) == (values.empty() ? nullptr : values[0]);
    case Kind::CELL:
      return PyCell_GET(target) == values[0];
    case Kind::FUNCTION:
      return PyFunction_GET_CODE(target) == values[0] && or_none(PyFunction_GET_DEFAULTS(target)) == values[1] &&
          or_none(PyFunction_GET_KW_DEFAULTS(target)) == values[2];
    case Kind::LIST:
      if (PyList_GET_SIZE(target) != static_cast<Py_ssize_t>(values.size())) return false;
      for (size_t n = 0; n < values.size(); ++n) {
        if (PyList_GET_ITEM(target, n) != values[n]) return false;
      }
      return true;
    case Kind::SET:
      return set_holds(target, values);
    case Kind::CLASS: {
      auto* type = reinterpret_cast<PyTypeObject*>(target);
      return type->tp_bases == key && type->tp_dict != nullptr && dict_holds(type->tp_dict, values);
    }
    case Kind::DICT:
      return dict_holds(target, values);
  }
  return false;
}

struct Places {
  std::vector<Place> places;
};

constexpr const char* PLACES = "paramgraph_kit.places";

void forget_places(PyObject* capsule) { delete static_cast<Places*>(PyCapsule_GetPointer(capsule, PLACES)); }

int places_hold(PyObject* capsule) {
  const auto* kept = static_cast<Places*>(PyCapsule_GetPointer(capsule, PLACES));
  if (kept == nullptr) return -1;
  const auto& places = kept->places;
  for (size_t n = 0; n < places.size(); ++n) {
#if defined(__GNUC__) || defined(__clang__)
    if (n + 4 < places.size()) __builtin_prefetch(places[n + 4].target);
#endif
    if (!places[n].holds()) return PyErr_Occurred() ? -1 : 0;
  }
  return 1;
}

bool fits(Kind kind, PyObject* target, PyObject* key, Py_ssize_t values) {
  switch (kind) {
    case Kind::GLOBAL:
      return PyDict_CheckExact(target) && PyUnicode_CheckExact(key) && values <= 1;
    case Kind::CELL:
      return PyCell_Check(target) && values == 1;
    case Kind::FUNCTION:
      return PyFunction_Check(target) && values == 3;
    case Kind::LIST:
      return PyList_Check(target);
    case Kind::SET:
      return PyAnySet_Check(target);
    case Kind::CLASS:  // of those that C has made, some keep their dictionary elsewhere
      return PyType_Check(target) && PyType_HasFeature(reinterpret_cast<PyTypeObject*>(target), Py_TPFLAGS_HEAPTYPE);
    case Kind::DICT:  // an ordered one has an order that a dictionary does not know of, but of one entry
      return PyDict_Check(target) && values <= 2 && values % 2 == 0;
  }
  return false;
}

}  // namespace

// places(rows): of a list of (kind, target, key or bases, tuple of values), for unchanged(). What they hold now is not
// looked at.
PyObject* places(PyObject*, PyObject* rows) {
  return guarded([&]() -> PyObject* {
    if (!PyList_CheckExact(rows)) {
      PyErr_SetString(PyExc_TypeError, "takes a list of places");
      return nullptr;
    }
    std::vector<Place> found;
    for (Py_ssize_t n = 0; n < PyList_GET_SIZE(rows); ++n) {
      int number;
      PyObject *target, *key, *values;
      PyObject* row = PyList_GET_ITEM(rows, n);
      if (!PyTuple_CheckExact(row) || !PyArg_ParseTuple(row, "iOOO!", &number, &target, &key, &PyTuple_Type, &values)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a place is a tuple");
        return nullptr;
      }
      const auto kind = static_cast<Kind>(number);
      if (!fits(kind, target, key, PyTuple_GET_SIZE(values))) {
        PyErr_Format(PyExc_TypeError, "a place of kind %d is not in a %s", number, Py_TYPE(target)->tp_name);
        return nullptr;
      }
      auto& place = found.emplace_back(Place{kind, target, key, {}});
      for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(values); ++k) place.values.push_back(PyTuple_GET_ITEM(values, k));
    }
    auto* kept = new Places{std::move(found)};
    PyObject* capsule = PyCapsule_New(kept, PLACES, forget_places);
    if (capsule == nullptr) delete kept;
    return checking(capsule, places_hold);
  });
}

// unchanged(checks): whether all is as it was for each of a tuple of what look(), watch(), contents(), kinds() and
// places() have made; asked in this order, and of no more once one says no.
PyObject* unchanged(PyObject*, PyObject* checks) {
  return guarded([&]() -> PyObject* {
    if (!PyTuple_CheckExact(checks)) {
      PyErr_SetString(PyExc_TypeError, "takes a tuple of checks");
      return nullptr;
    }
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(checks); ++n) {
      PyObject* capsule = PyTuple_GET_ITEM(checks, n);
      auto* check = PyCapsule_CheckExact(capsule) ? reinterpret_cast<Check>(PyCapsule_GetContext(capsule)) : nullptr;
      if (check == nullptr) {
        PyErr_SetString(PyExc_TypeError, "takes a tuple of checks");
        return nullptr;
      }
      const int holds = check(capsule);
      if (holds < 0) return nullptr;
      if (holds == 0) Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
  });
}
