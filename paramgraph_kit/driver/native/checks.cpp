// What a launch depends on, asked in C++ for hundreds of tensors and dictionaries at once: how tensors look and where
// they lie, who holds them, whether dictionaries were written; and what runs while a function is traced. Whatever is here has its like in Python, which it must
// agree with. Built by build.py on the user's machine, against the torch and the Python that run there.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/core/TensorBase.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/DimVector.h>

#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#ifdef Py_GIL_DISABLED
#error "written for an interpreter with a lock"
#endif

namespace {

Py_ssize_t implementation_at = 0;  // in the Python object of a tensor: found by learn(), not assumed
PyTypeObject* tensor_type = nullptr;

c10::TensorImpl* implementation(PyObject* tensor) {
  c10::TensorImpl* found;
  std::memcpy(&found, reinterpret_cast<char*>(tensor) + implementation_at, sizeof found);
  return found;
}

// As data_ptr() says it: of a lazy clone, whose memory is another's until somebody asks, that of its own.
uintptr_t address_of(c10::TensorImpl* tensor) {
  auto* storage = tensor->unsafe_storage().unsafeGetStorageImpl();
  const auto start = reinterpret_cast<uintptr_t>(storage->mutable_data());
  if (start == 0 || tensor->numel() == 0) return 0;
  return start + tensor->storage_offset() * tensor->dtype().itemsize();
}

// With what this thread has switched on and off, as torch's own guards ask.
uint64_t keys_of(c10::TensorImpl* tensor, const c10::impl::LocalDispatchKeySet& local) {
  return ((tensor->key_set() | local.included_) - local.excluded_).raw_repr();
}

struct Look {
  PyTypeObject* type;
  uintptr_t address;
  uint64_t keys;
  caffe2::TypeMeta dtype;
  c10::Device device;
  bool requires_grad;
  c10::DimVector sizes, strides;

  Look(PyObject* object, c10::TensorImpl* tensor, const c10::impl::LocalDispatchKeySet& local)
      : type(Py_TYPE(object)),
        address(address_of(tensor)),
        keys(keys_of(tensor, local)),
        dtype(tensor->dtype()),
        device(tensor->device()),
        requires_grad(tensor->requires_grad()),
        sizes(tensor->sizes()),
        strides(tensor->strides()) {}

  bool holds(PyObject* object, const c10::impl::LocalDispatchKeySet& local) const {
    if (Py_TYPE(object) != type) return false;
    auto* tensor = implementation(object);
    return plain(tensor) && address_of(tensor) == address && keys_of(tensor, local) == keys &&
        tensor->dtype() == dtype && tensor->device() == device && tensor->requires_grad() == requires_grad &&
        tensor->sizes().equals(sizes) && tensor->strides().equals(strides);
  }

  // Whether it has what is asked about here; sparse ones and those of subclasses with insides of their own have not.
  static bool plain(c10::TensorImpl* tensor) {
    return tensor != nullptr && tensor->layout() == c10::kStrided && tensor->has_storage() &&
        !tensor->is_python_dispatch() && !tensor->has_symbolic_sizes_strides();
  }
};

struct Looks {
  PyObject* tensors;  // a tuple
  std::vector<Look> looks;
};

constexpr const char* LOOKS = "paramgraph_kit.looks";
constexpr const char* DICTS = "paramgraph_kit.dicts";

template <typename F>
PyObject* guarded(F&& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

bool counts_are(Py_ssize_t given, Py_ssize_t wanted) {
  if (given != wanted) PyErr_Format(PyExc_TypeError, "takes %zd arguments, not %zd", wanted, given);
  return given == wanted;
}

bool are_lists(PyObject* const* args, Py_ssize_t count) {
  for (Py_ssize_t n = 0; n < count; ++n) {
    if (!PyList_CheckExact(args[n]) || PyList_GET_SIZE(args[n]) != PyList_GET_SIZE(args[0])) {
      PyErr_SetString(PyExc_TypeError, "takes lists of one length");
      return false;
    }
  }
  return true;
}

// learn(tensors, pointers): find where Python's object of a tensor keeps it; False where that cannot be told.
PyObject* learn(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!counts_are(count, 2) || !are_lists(args, 2)) return nullptr;
  const Py_ssize_t many = PyList_GET_SIZE(args[0]);
  constexpr Py_ssize_t step = sizeof(void*);
  for (Py_ssize_t at = sizeof(PyObject); many > 0; at += step) {
    bool all = true;
    for (Py_ssize_t n = 0; n < many && all; ++n) {
      PyObject* tensor = PyList_GET_ITEM(args[0], n);
      if (at + step > Py_TYPE(tensor)->tp_basicsize) Py_RETURN_FALSE;
      void* known = PyLong_AsVoidPtr(PyList_GET_ITEM(args[1], n));
      if (PyErr_Occurred()) return nullptr;
      void* found;
      std::memcpy(&found, reinterpret_cast<char*>(tensor) + at, sizeof found);
      all = found == known;
    }
    if (all) {
      implementation_at = at;
      tensor_type = Py_TYPE(PyList_GET_ITEM(args[0], 0));  // torch.Tensor, which torch holds
      Py_RETURN_TRUE;
    }
  }
  Py_RETURN_FALSE;
}

void forget_looks(PyObject* capsule) {
  auto* kept = static_cast<Looks*>(PyCapsule_GetPointer(capsule, LOOKS));
  Py_DECREF(kept->tensors);
  delete kept;
}

// look(tensors): how each of a tuple looks and where it lies; None where one is of another kind.
PyObject* look(PyObject*, PyObject* tensors) {
  return guarded([&]() -> PyObject* {
    if (!PyTuple_CheckExact(tensors)) {
      PyErr_SetString(PyExc_TypeError, "takes a tuple of tensors");
      return nullptr;
    }
    const auto local = c10::impl::tls_local_dispatch_key_set();
    std::vector<Look> looks;
    looks.reserve(PyTuple_GET_SIZE(tensors));
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(tensors); ++n) {
      PyObject* each = PyTuple_GET_ITEM(tensors, n);
      if (!Look::plain(implementation(each))) Py_RETURN_NONE;
      looks.emplace_back(each, implementation(each), local);
    }
    auto* kept = new Looks{Py_NewRef(tensors), std::move(looks)};
    PyObject* capsule = PyCapsule_New(kept, LOOKS, forget_looks);
    if (capsule == nullptr) {
      Py_DECREF(kept->tensors);
      delete kept;
    }
    return capsule;
  });
}

// same(looks): whether all of them look so and lie there now.
PyObject* same(PyObject*, PyObject* capsule) {
  return guarded([&]() -> PyObject* {
    const auto* kept = static_cast<Looks*>(PyCapsule_GetPointer(capsule, LOOKS));
    if (kept == nullptr) return nullptr;
    const auto local = c10::impl::tls_local_dispatch_key_set();
    for (size_t n = 0; n < kept->looks.size(); ++n) {
      if (!kept->looks[n].holds(PyTuple_GET_ITEM(kept->tensors, n), local)) Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
  });
}

// addresses(inputs, mask): of a list of tensors, and of numbers that are addresses themselves; None where any has bits
// of the mask, which are those that aligned memory has not.
PyObject* addresses(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!counts_are(count, 2) || !are_lists(args, 1)) return nullptr;
  return guarded([&]() -> PyObject* {
    const auto mask = PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred()) return nullptr;
    const Py_ssize_t many = PyList_GET_SIZE(args[0]);
    PyObject* found = PyTuple_New(many);
    unsigned long long all = 0;
    for (Py_ssize_t n = 0; found != nullptr && n < many; ++n) {
      PyObject* each = PyList_GET_ITEM(args[0], n);
      PyObject* entry;
      if (PyLong_CheckExact(each)) {
        entry = Py_NewRef(each);
      } else if (PyObject_TypeCheck(each, tensor_type) && Look::plain(implementation(each))) {
        entry = PyLong_FromUnsignedLongLong(address_of(implementation(each)));
      } else {
        entry = PyObject_CallMethod(each, "data_ptr", nullptr);
      }
      if (entry != nullptr) {
        PyTuple_SET_ITEM(found, n, entry);
        all |= PyLong_AsUnsignedLongLong(entry);
      }
      if (entry == nullptr || PyErr_Occurred()) Py_CLEAR(found);
    }
    if (found != nullptr && (all & mask) != 0) {
      Py_DECREF(found);
      Py_RETURN_NONE;
    }
    return found;
  });
}

// shifted(address, offsets): a tuple of the addresses so many bytes behind it.
PyObject* shifted(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!counts_are(count, 2)) return nullptr;
  if (!PyTuple_CheckExact(args[1])) {
    PyErr_SetString(PyExc_TypeError, "takes a number and a tuple of numbers");
    return nullptr;
  }
  const auto address = PyLong_AsUnsignedLongLong(args[0]);
  PyObject* found = PyErr_Occurred() ? nullptr : PyTuple_New(PyTuple_GET_SIZE(args[1]));
  for (Py_ssize_t n = 0; found != nullptr && n < PyTuple_GET_SIZE(found); ++n) {
    const auto offset = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(args[1], n));
    PyObject* entry = PyErr_Occurred() ? nullptr : PyLong_FromUnsignedLongLong(address + offset);
    if (entry == nullptr) Py_CLEAR(found);
    else PyTuple_SET_ITEM(found, n, entry);
  }
  return found;
}

// versions(tensors): how often each of a list was written.
PyObject* versions(PyObject*, PyObject* tensors) {
  if (!are_lists(&tensors, 1)) return nullptr;
  return guarded([&]() -> PyObject* {
    PyObject* found = PyList_New(PyList_GET_SIZE(tensors));
    for (Py_ssize_t n = 0; found != nullptr && n < PyList_GET_SIZE(tensors); ++n) {
      PyObject* each = PyList_GET_ITEM(tensors, n);
      const bool plain = PyObject_TypeCheck(each, tensor_type) && !implementation(each)->is_inference();
      PyObject* entry = plain ? PyLong_FromUnsignedLong(implementation(each)->version_counter().current_version())
                              : PyObject_GetAttrString(each, "_version");
      if (entry == nullptr) Py_CLEAR(found);
      else PyList_SET_ITEM(found, n, entry);
    }
    return found;
  });
}

// gradients_are(tensors, gradients): whether each tensor's gradient is that one, or None.
PyObject* gradients_are(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!counts_are(count, 2) || !are_lists(args, 2)) return nullptr;
  return guarded([&]() -> PyObject* {
    for (Py_ssize_t n = 0; n < PyList_GET_SIZE(args[0]); ++n) {
      const auto& found = reinterpret_cast<const at::TensorBase&>(implementation(PyList_GET_ITEM(args[0], n))->grad());
      PyObject* known = PyList_GET_ITEM(args[1], n);
      if (known == Py_None ? found.defined() : found.unsafeGetTensorImpl() != implementation(known)) Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
  });
}

// Python's references to a tensor, C++'s to its insides, and those to a storage, which is given by its address.
struct Uses {
  Py_ssize_t references, uses, storage_uses;

  static Uses of(PyObject* tensor, void* storage) {
    return {
        Py_REFCNT(tensor),
        static_cast<Py_ssize_t>(c10::raw::intrusive_ptr::use_count(implementation(tensor))),
        static_cast<Py_ssize_t>(c10::raw::intrusive_ptr::use_count(static_cast<c10::StorageImpl*>(storage)))};
  }
};

// uses(tensors, storages): of each (references, uses, storage's uses).
PyObject* uses(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!counts_are(count, 2) || !are_lists(args, 2)) return nullptr;
  PyObject* found = PyList_New(0);
  for (Py_ssize_t n = 0; found != nullptr && n < PyList_GET_SIZE(args[0]); ++n) {
    const auto each = Uses::of(PyList_GET_ITEM(args[0], n), PyLong_AsVoidPtr(PyList_GET_ITEM(args[1], n)));
    PyObject* row = Py_BuildValue("(nnn)", each.references, each.uses, each.storage_uses);
    if (row == nullptr || PyList_Append(found, row) < 0) Py_CLEAR(found);
    Py_XDECREF(row);
  }
  return found;
}

// unheld(tensors, storages, most references, most uses, storage's uses): whether nobody else holds any of them.
PyObject* unheld(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!counts_are(count, 5) || !are_lists(args, 2)) return nullptr;
  const Uses most{PyLong_AsSsize_t(args[2]), PyLong_AsSsize_t(args[3]), PyLong_AsSsize_t(args[4])};
  if (PyErr_Occurred()) return nullptr;
  for (Py_ssize_t n = 0; n < PyList_GET_SIZE(args[0]); ++n) {
    void* storage = PyLong_AsVoidPtr(PyList_GET_ITEM(args[1], n));
    if (storage == nullptr) return PyErr_Occurred() ? nullptr : Py_NewRef(Py_False);
    const auto each = Uses::of(PyList_GET_ITEM(args[0], n), storage);
    if (each.references > most.references || each.uses > most.uses || each.storage_uses != most.storage_uses)
      Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

// written(tensors): autograd has to see that they were.
PyObject* written(PyObject*, PyObject* tensors) {
  return guarded([&]() -> PyObject* {
    if (!PyList_CheckExact(tensors)) {
      PyErr_SetString(PyExc_TypeError, "takes a list of tensors");
      return nullptr;
    }
    for (Py_ssize_t n = 0; n < PyList_GET_SIZE(tensors); ++n) {
      auto* tensor = implementation(PyList_GET_ITEM(tensors, n));
      if (!tensor->is_inference()) tensor->bump_version();
    }
    Py_RETURN_NONE;
  });
}

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

// unwritten(watch): whether none of them was written since.
PyObject* unwritten(PyObject*, PyObject* capsule) {
  const auto* kept = static_cast<Dicts*>(PyCapsule_GetPointer(capsule, DICTS));
  if (kept == nullptr) return nullptr;
  return PyBool_FromLong(untouched(*kept));
}

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

PyMethodDef functions[] = {
    {"learn", reinterpret_cast<PyCFunction>(learn), METH_FASTCALL, nullptr},
    {"look", look, METH_O, nullptr},
    {"same", same, METH_O, nullptr},
    {"addresses", reinterpret_cast<PyCFunction>(addresses), METH_FASTCALL, nullptr},
    {"shifted", reinterpret_cast<PyCFunction>(shifted), METH_FASTCALL, nullptr},
    {"versions", versions, METH_O, nullptr},
    {"gradients_are", reinterpret_cast<PyCFunction>(gradients_are), METH_FASTCALL, nullptr},
    {"uses", reinterpret_cast<PyCFunction>(uses), METH_FASTCALL, nullptr},
    {"unheld", reinterpret_cast<PyCFunction>(unheld), METH_FASTCALL, nullptr},
    {"written", written, METH_O, nullptr},
    {"profile", reinterpret_cast<PyCFunction>(profile), METH_FASTCALL, nullptr},
    {"watch", watch, METH_O, nullptr},
    {"contents", contents, METH_O, nullptr},
    {"holds", holds, METH_O, nullptr},
    {"unwritten", unwritten, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "paramgraph_kit_checks", nullptr, -1, functions};

}  // namespace

PyMODINIT_FUNC PyInit_paramgraph_kit_checks() {
  if (!begin()) return nullptr;
  return PyModule_Create(&definition);
}
