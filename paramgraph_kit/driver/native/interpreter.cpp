// Writes to dictionaries, and calls while a function is traced: what Python's interpreter tells.

#include "checks.h"

#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr const char* DICTS = "paramgraph_kit.dicts";

// Who is told of calls while a function is traced: of millions, all but the first of each code are passed over here.
struct Profile {
  PyObject *hook, *always;
  std::unordered_map<PyObject*, bool> known;  // by code: whether the hook wants to know which C functions it calls
};

constexpr const char* PROFILE = "paramgraph_kit.profile";

void forget_profile(PyObject* capsule) {
  auto* kept = static_cast<Profile*>(PyCapsule_GetPointer(capsule, PROFILE));
  for (auto& each : kept->known) Py_DECREF(each.first);
  Py_DECREF(kept->hook);
  Py_DECREF(kept->always);
  delete kept;
}

int on_event(PyObject* capsule, PyFrameObject* frame, int what, PyObject* argument) {
  if (what != PyTrace_CALL && what != PyTrace_RETURN && what != PyTrace_C_CALL) return 0;
  auto* kept = static_cast<Profile*>(PyCapsule_GetPointer(capsule, PROFILE));
  auto* code = reinterpret_cast<PyObject*>(PyFrame_GetCode(frame));
  Py_DECREF(code);  // the frame holds it
  const auto found = kept->known.find(code);
  const bool first = what == PyTrace_CALL && found == kept->known.end();
  const bool wanted = what == PyTrace_C_CALL && found != kept->known.end() && found->second;
  if (!first && !wanted && (code != kept->always || what == PyTrace_C_CALL)) return 0;
  PyObject* event = PyUnicode_FromString(what == PyTrace_CALL ? "call" : what == PyTrace_RETURN ? "return" : "c_call");
  PyObject* said = event == nullptr ? nullptr : PyObject_CallFunctionObjArgs(
      kept->hook, reinterpret_cast<PyObject*>(frame), event, argument == nullptr ? Py_None : argument, nullptr);
  Py_XDECREF(event);
  if (said == nullptr) return -1;
  if (first && PyBool_Check(said) && code != kept->always) kept->known.emplace(Py_NewRef(code), said == Py_True);
  Py_DECREF(said);
  return 0;
}

}  // namespace

// profile(hook, always): from now on tell ``hook(frame, event, function)`` what runs on this thread, as sys.setprofile
// does, but of each code only the first call, until it says True or False. True: the C functions that this code calls
// matter; False: nothing of it. Of the code ``always`` it is told of each call and return.
PyObject* profile(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!counts_are(count, 2)) return nullptr;
  auto* kept = new Profile{Py_NewRef(args[0]), Py_NewRef(args[1]), {}};
  PyObject* capsule = PyCapsule_New(kept, PROFILE, forget_profile);
  if (capsule == nullptr) return nullptr;
  PyEval_SetProfile(on_event, capsule);
  Py_DECREF(capsule);
  Py_RETURN_NONE;
}

namespace {

#if PY_VERSION_HEX >= 0x030C0000  // Python tells of each write

struct Dicts {
  std::vector<PyObject*> dicts;
  bool written = false;
};

int watcher = -1;
std::unordered_map<PyObject*, std::vector<Dicts*>>& watched() {
  static auto* found = new std::unordered_map<PyObject*, std::vector<Dicts*>>();  // outlives the interpreter
  return *found;
}

int note(PyDict_WatchEvent, PyObject* dict, PyObject*, PyObject*) {
  const auto found = watched().find(dict);
  if (found != watched().end()) {
    for (auto* each : found->second) each->written = true;
  }
  return 0;
}

bool watch_one(Dicts* kept, PyObject* dict) {
  watched()[dict].push_back(kept);
  return PyDict_Watch(watcher, dict) == 0;
}

void unwatch(Dicts* kept) {
  for (auto* dict : kept->dicts) {
    auto found = watched().find(dict);
    if (found == watched().end()) continue;
    auto& others = found->second;
    for (size_t n = others.size(); n-- > 0;) {
      if (others[n] == kept) others.erase(others.begin() + n);
    }
    if (others.empty()) {
      watched().erase(found);
      if (PyDict_Unwatch(watcher, dict) < 0) PyErr_Clear();
    }
  }
}

bool untouched(const Dicts& kept) { return !kept.written; }

bool begin() { return (watcher = PyDict_AddWatcher(note)) >= 0; }

#else  // a dictionary has a number that no other state of any has

struct Dicts {
  std::vector<PyObject*> dicts;
  std::vector<uint64_t> versions;
};

uint64_t version_of(PyObject* dict) { return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag; }

bool watch_one(Dicts* kept, PyObject* dict) {
  kept->versions.push_back(version_of(dict));
  return true;
}

void unwatch(Dicts*) {}

bool untouched(const Dicts& kept) {
  for (size_t n = 0; n < kept.dicts.size(); ++n) {
    if (version_of(kept.dicts[n]) != kept.versions[n]) return false;
  }
  return true;
}

bool begin() { return true; }

#endif

void drop(Dicts* kept) {
  unwatch(kept);
  for (auto* dict : kept->dicts) Py_DECREF(dict);
  delete kept;
}

void forget_dicts(PyObject* capsule) { drop(static_cast<Dicts*>(PyCapsule_GetPointer(capsule, DICTS))); }

}  // namespace

// watch(dicts): from now on, for unwritten().
PyObject* watch(PyObject*, PyObject* dicts) {
  return guarded([&]() -> PyObject* {
    if (!PyTuple_CheckExact(dicts)) {
      PyErr_SetString(PyExc_TypeError, "takes a tuple of dictionaries");
      return nullptr;
    }
    auto* kept = new Dicts();
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(dicts); ++n) {
      PyObject* each = PyTuple_GET_ITEM(dicts, n);
      if (!PyDict_Check(each)) PyErr_SetString(PyExc_TypeError, "takes a tuple of dictionaries");
      if (PyErr_Occurred() || (kept->dicts.push_back(Py_NewRef(each)), !watch_one(kept, each))) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        drop(kept);
        PyErr_Restore(type, value, trace);
        return nullptr;
      }
    }
    PyObject* capsule = PyCapsule_New(kept, DICTS, forget_dicts);
    if (capsule == nullptr) drop(kept);
    return capsule;
  });
}

namespace {

}  // namespace

// unwritten(watch): whether none of them was written since.
PyObject* unwritten(PyObject*, PyObject* capsule) {
  const auto* kept = static_cast<Dicts*>(PyCapsule_GetPointer(capsule, DICTS));
  if (kept == nullptr) return nullptr;
  return PyBool_FromLong(untouched(*kept));
}

namespace {

// What dictionaries hold, by identity. Of the entries nobody is held here: whoever asks holds them, and the garbage
// collector sees that.
struct Contents {
  PyObject* dicts;  // a tuple
  std::vector<Py_ssize_t> sizes;
  std::vector<std::pair<PyObject*, PyObject*>> entries;
};

constexpr const char* CONTENTS = "paramgraph_kit.contents";

void forget_contents(PyObject* capsule) {
  auto* kept = static_cast<Contents*>(PyCapsule_GetPointer(capsule, CONTENTS));
  Py_DECREF(kept->dicts);
  delete kept;
}

}  // namespace

// contents(dicts): of a tuple of dictionaries, for holds().
PyObject* contents(PyObject*, PyObject* dicts) {
  return guarded([&]() -> PyObject* {
    bool all = PyTuple_CheckExact(dicts);
    for (Py_ssize_t n = 0; all && n < PyTuple_GET_SIZE(dicts); ++n) all = PyDict_Check(PyTuple_GET_ITEM(dicts, n));
    if (!all) {
      PyErr_SetString(PyExc_TypeError, "takes a tuple of dictionaries");
      return nullptr;
    }
    auto* kept = new Contents{Py_NewRef(dicts), {}, {}};
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(dicts); ++n) {
      PyObject *each = PyTuple_GET_ITEM(dicts, n), *key, *value;
      kept->sizes.push_back(PyDict_Size(each));
      for (Py_ssize_t at = 0; PyDict_Next(each, &at, &key, &value);) kept->entries.emplace_back(key, value);
    }
    PyObject* capsule = PyCapsule_New(kept, CONTENTS, forget_contents);
    if (capsule == nullptr) {
      Py_DECREF(kept->dicts);
      delete kept;
    }
    return capsule;
  });
}

namespace {

}  // namespace

// holds(contents): whether each dictionary holds the same under the same keys, in the same order.
PyObject* holds(PyObject*, PyObject* capsule) {
  const auto* kept = static_cast<Contents*>(PyCapsule_GetPointer(capsule, CONTENTS));
  if (kept == nullptr) return nullptr;
  size_t next = 0;
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(kept->dicts); ++n) {
    PyObject *each = PyTuple_GET_ITEM(kept->dicts, n), *key, *value;
    if (PyDict_Size(each) != kept->sizes[n]) Py_RETURN_FALSE;
    for (Py_ssize_t at = 0; PyDict_Next(each, &at, &key, &value); ++next) {
      if (next == kept->entries.size() || kept->entries[next] != std::make_pair(key, value)) Py_RETURN_FALSE;
    }
  }
  return PyBool_FromLong(next == kept->entries.size());
}

// kinds_are(objects, classes, dicts): whether objects of a list are of these classes and keep their attributes in these
// dictionaries; None where they have none.
PyObject* kinds_are(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!counts_are(count, 3)) return nullptr;
  for (Py_ssize_t n = 0; n < 3; ++n) {
    if (!PyList_CheckExact(args[n]) || PyList_GET_SIZE(args[n]) != PyList_GET_SIZE(args[0])) {
      PyErr_SetString(PyExc_TypeError, "takes lists of one length");
      return nullptr;
    }
  }
  for (Py_ssize_t n = 0; n < PyList_GET_SIZE(args[0]); ++n) {
    PyObject *each = PyList_GET_ITEM(args[0], n), *known = PyList_GET_ITEM(args[2], n);
    if (reinterpret_cast<PyObject*>(Py_TYPE(each)) != PyList_GET_ITEM(args[1], n)) Py_RETURN_FALSE;
    if (known == Py_None) continue;
    PyObject* found = PyObject_GenericGetDict(each, nullptr);
    if (found == nullptr) {
      PyErr_Clear();
      Py_RETURN_FALSE;
    }
    Py_DECREF(found);  // the object holds it
    if (found != known) Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

bool begin_watching() { return begin(); }
