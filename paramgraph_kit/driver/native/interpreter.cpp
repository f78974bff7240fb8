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

int unwritten_hold(PyObject* capsule) {
  const auto* kept = static_cast<Dicts*>(PyCapsule_GetPointer(capsule, DICTS));
  return kept == nullptr ? -1 : untouched(*kept);
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
    return checking(capsule, unwritten_hold);
  });
}

// unwritten(watch): whether none of them was written since.
PyObject* unwritten(PyObject*, PyObject* capsule) { return answer(unwritten_hold(capsule)); }

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

int contents_hold(PyObject* capsule) {
  const auto* kept = static_cast<Contents*>(PyCapsule_GetPointer(capsule, CONTENTS));
  if (kept == nullptr) return -1;
  size_t next = 0;
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(kept->dicts); ++n) {
    PyObject *each = PyTuple_GET_ITEM(kept->dicts, n), *key, *value;
    if (PyDict_Size(each) != kept->sizes[n]) return 0;
    for (Py_ssize_t at = 0; PyDict_Next(each, &at, &key, &value); ++next) {
      if (next == kept->entries.size() || kept->entries[next] != std::make_pair(key, value)) return 0;
    }
  }
  return next == kept->entries.size();
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
    return checking(capsule, contents_hold);
  });
}

// holds(contents): whether each dictionary holds the same under the same keys, in the same order.
PyObject* holds(PyObject*, PyObject* capsule) { return answer(contents_hold(capsule)); }

namespace {

// Classes and dictionaries of objects, none of which is held here.
struct Kinds {
  struct Row {
    PyObject *object, *type, *dict;  // no dictionary: it has none
  };
  std::vector<Row> rows;
};

constexpr const char* KINDS = "paramgraph_kit.kinds";

void forget_kinds(PyObject* capsule) { delete static_cast<Kinds*>(PyCapsule_GetPointer(capsule, KINDS)); }

int kinds_hold(PyObject* capsule) {
  const auto* kept = static_cast<Kinds*>(PyCapsule_GetPointer(capsule, KINDS));
  if (kept == nullptr) return -1;
  const auto& rows = kept->rows;
  for (size_t n = 0; n < rows.size(); ++n) {
#if defined(__GNUC__) || defined(__clang__)
    if (n + 8 < rows.size()) {  // what names its dictionary stands before an object
      __builtin_prefetch(reinterpret_cast<char*>(rows[n + 8].object) - 4 * sizeof(void*));
      __builtin_prefetch(rows[n + 8].object);
    }
#endif
    const auto& [object, type, dict] = rows[n];
    if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != type) return 0;
    if (dict == nullptr) continue;
    PyObject* found = PyObject_GenericGetDict(object, nullptr);
    if (found == nullptr) {
      PyErr_Clear();
      return 0;
    }
    Py_DECREF(found);  // the object holds it
    if (found != dict) return 0;
  }
  return 1;
}

}  // namespace

// kinds(objects, classes, dicts): for unchanged(), whether the objects of a list are of these classes and keep their
// attributes in these dictionaries, None where they have none. Whoever asks holds them all.
PyObject* kinds(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!counts_are(count, 3)) return nullptr;
  return guarded([&]() -> PyObject* {
    std::vector<Kinds::Row> rows;
    for (Py_ssize_t n = 0; n < 3; ++n) {
      if (!PyList_CheckExact(args[n]) || PyList_GET_SIZE(args[n]) != PyList_GET_SIZE(args[0])) {
        PyErr_SetString(PyExc_TypeError, "takes lists of one length");
        return nullptr;
      }
    }
    for (Py_ssize_t n = 0; n < PyList_GET_SIZE(args[0]); ++n) {
      PyObject* dict = PyList_GET_ITEM(args[2], n);
      rows.push_back({PyList_GET_ITEM(args[0], n), PyList_GET_ITEM(args[1], n), dict == Py_None ? nullptr : dict});
    }
    auto* kept = new Kinds{std::move(rows)};
    PyObject* capsule = PyCapsule_New(kept, KINDS, forget_kinds);
    if (capsule == nullptr) delete kept;
    return checking(capsule, kinds_hold);
  });
}

bool begin_watching() { return begin(); }
