// What a launch depends on, asked in C++ for hundreds of tensors at once: how they look and where they lie, and who
// holds them; interpreter.cpp has the rest. Whatever is here has its like in Python, which it must agree with. Built by
// build.py on the user's machine, against the torch and the Python that run there.

#include "checks.h"

#include <ATen/core/TensorBase.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/DimVector.h>

#include <cstring>
#include <vector>

namespace {

Py_ssize_t implementation_at = 0;  // in the Python object of a tensor: found by learn(), not assumed
PyTypeObject* tensor_type = nullptr;

c10::TensorImpl* implementation(PyObject* tensor) {
  c10::TensorImpl* found;
  std::memcpy(&found, reinterpret_cast<char*>(tensor) + implementation_at, sizeof found);
  return found;
}

// Between two steps everything here has left the processor's caches, and waiting for one tensor after the other took most
// of a call. So memory is told of those that come next while one is looked at: first where Python's object names its
// insides, then these, then what they lead to. Nothing is read that is not there: whoever asks holds the tensors.
constexpr Py_ssize_t OBJECT = 24, INSIDES = 16, BEHIND = 8;  // so many tensors ahead

void soon(const void* at, size_t size) {
#if defined(__GNUC__) || defined(__clang__)
  for (size_t n = 0; n < size; n += 64) __builtin_prefetch(static_cast<const char*>(at) + n);
#endif
}

enum Behind { STORAGE = 1, AUTOGRAD = 2, VERSION = 4 };

template <int behind>
void soon_behind(c10::TensorImpl* tensor) {
  if (tensor == nullptr) return;
  if constexpr (behind & STORAGE) soon(tensor->unsafe_storage().unsafeGetStorageImpl(), sizeof(c10::StorageImpl));
  if constexpr (behind & AUTOGRAD) soon(tensor->autograd_meta(), 128);
  if constexpr ((behind & VERSION) && sizeof(c10::VariableVersion) == sizeof(void*)) {
    void* counter;
    std::memcpy(&counter, &tensor->version_counter(), sizeof counter);
    soon(counter, 1);
  }
}

// each(n) for many tensors, nth(n) being theirs, until it says no; whether it never did.
template <int behind, typename Nth, typename Each>
bool all_of(Py_ssize_t many, Nth nth, Each each) {
  for (Py_ssize_t n = -OBJECT; n < many; ++n) {
    if (n + OBJECT < many) soon(nth(n + OBJECT), implementation_at + sizeof(void*));
    if (const auto k = n + INSIDES; k >= 0 && k < many) soon(implementation(nth(k)), sizeof(c10::TensorImpl));
    if (const auto k = n + BEHIND; k >= 0 && k < many) soon_behind<behind>(implementation(nth(k)));
    if (n >= 0 && !each(n)) return false;
  }
  return true;
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

// How a tensor looks, apart from where it lies: of hundreds only a few differ in that, and are kept once.
struct Look {
  PyTypeObject* type;
  uint64_t keys;
  caffe2::TypeMeta dtype;
  c10::Device device;
  bool requires_grad;
  c10::DimVector sizes, strides;

  Look(PyObject* object, c10::TensorImpl* tensor, const c10::impl::LocalDispatchKeySet& local)
      : type(Py_TYPE(object)),
        keys(keys_of(tensor, local)),
        dtype(tensor->dtype()),
        device(tensor->device()),
        requires_grad(tensor->requires_grad()),
        sizes(tensor->sizes()),
        strides(tensor->strides()) {}

  bool holds(PyObject* object, const c10::impl::LocalDispatchKeySet& local) const {
    if (Py_TYPE(object) != type) return false;
    auto* tensor = implementation(object);
    return plain(tensor) && keys_of(tensor, local) == keys && tensor->dtype() == dtype && tensor->device() == device &&
        tensor->requires_grad() == requires_grad && tensor->sizes().equals(sizes) && tensor->strides().equals(strides);
  }

  // Whether it has what is asked about here; sparse ones and those of subclasses with insides of their own have not.
  static bool plain(c10::TensorImpl* tensor) {
    return tensor != nullptr && tensor->layout() == c10::kStrided && tensor->has_storage() &&
        !tensor->is_python_dispatch() && !tensor->has_symbolic_sizes_strides();
  }
};

struct Placed {
  uintptr_t address;
  size_t look;  // which
};

struct Looks {
  PyObject* tensors;  // a tuple
  std::vector<Look> looks;
  std::vector<Placed> placed;
};

constexpr const char* LOOKS = "paramgraph_kit.looks";

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

int looks_hold(PyObject* capsule) {
  const auto* kept = static_cast<Looks*>(PyCapsule_GetPointer(capsule, LOOKS));
  if (kept == nullptr) return -1;
  const auto local = c10::impl::tls_local_dispatch_key_set();
  auto nth = [&](Py_ssize_t n) { return PyTuple_GET_ITEM(kept->tensors, n); };
  return all_of<STORAGE | AUTOGRAD>(static_cast<Py_ssize_t>(kept->placed.size()), nth, [&](Py_ssize_t n) {
    const auto& [address, look] = kept->placed[n];
    return kept->looks[look].holds(nth(n), local) && address_of(implementation(nth(n))) == address;
  });
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
    std::vector<Placed> placed;
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(tensors); ++n) {
      PyObject* each = PyTuple_GET_ITEM(tensors, n);
      auto* tensor = implementation(each);
      if (!Look::plain(tensor)) Py_RETURN_NONE;
      size_t k = looks.size();
      while (k > 0 && !looks[k - 1].holds(each, local)) --k;
      if (k == 0) {
        looks.emplace_back(each, tensor, local);
        k = looks.size();
      }
      placed.push_back({address_of(tensor), k - 1});
    }
    auto* kept = new Looks{Py_NewRef(tensors), std::move(looks), std::move(placed)};
    PyObject* capsule = PyCapsule_New(kept, LOOKS, forget_looks);
    if (capsule == nullptr) {
      Py_DECREF(kept->tensors);
      delete kept;
    }
    return checking(capsule, looks_hold);
  });
}

// same(looks): whether all of them look so and lie there now.
PyObject* same(PyObject*, PyObject* capsule) {
  return guarded([&]() -> PyObject* { return answer(looks_hold(capsule)); });
}

// How the tensors of a call look, wherever they lie, and how their addresses are aligned: 256 stands for more, too.
struct Given {
  std::vector<Look> looks;
  std::vector<uintptr_t> alignments;
};

constexpr const char* GIVEN = "paramgraph_kit.given";
constexpr uintptr_t ALIGNED = 256;  // capture/pair.py's ALIGNMENT
constexpr Py_ssize_t FEW = 32;  // whether they are all different ones is asked of each two

uintptr_t alignment_of(uintptr_t address) {
  const uintptr_t all = address & (~address + 1);
  return all == 0 || all > ALIGNED ? ALIGNED : all;
}

void forget_given(PyObject* capsule) { delete static_cast<Given*>(PyCapsule_GetPointer(capsule, GIVEN)); }

// given(tensors): how each of a tuple looks, for alike(); None where one is of another kind, or there are many.
PyObject* given(PyObject*, PyObject* tensors) {
  return guarded([&]() -> PyObject* {
    if (!PyTuple_CheckExact(tensors)) {
      PyErr_SetString(PyExc_TypeError, "takes a tuple of tensors");
      return nullptr;
    }
    const auto local = c10::impl::tls_local_dispatch_key_set();
    Given found;
    if (PyTuple_GET_SIZE(tensors) > FEW) Py_RETURN_NONE;
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(tensors); ++n) {
      PyObject* each = PyTuple_GET_ITEM(tensors, n);
      if (!PyObject_TypeCheck(each, tensor_type) || !Look::plain(implementation(each))) Py_RETURN_NONE;
      found.looks.emplace_back(each, implementation(each), local);
      found.alignments.push_back(alignment_of(address_of(implementation(each))));
    }
    auto* kept = new Given(std::move(found));
    PyObject* capsule = PyCapsule_New(kept, GIVEN, forget_given);
    if (capsule == nullptr) delete kept;
    return capsule;
  });
}

// alike(given, tensors): whether those of a tuple look so and are aligned so, all different ones without attributes.
PyObject* alike(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!counts_are(count, 2)) return nullptr;
  return guarded([&]() -> PyObject* {
    const auto* kept = static_cast<Given*>(PyCapsule_GetPointer(args[0], GIVEN));
    if (kept == nullptr) return nullptr;
    if (!PyTuple_CheckExact(args[1])) {
      PyErr_SetString(PyExc_TypeError, "takes a tuple of tensors");
      return nullptr;
    }
    const auto local = c10::impl::tls_local_dispatch_key_set();
    const Py_ssize_t many = PyTuple_GET_SIZE(args[1]);
    if (many != static_cast<Py_ssize_t>(kept->looks.size())) Py_RETURN_FALSE;
    for (Py_ssize_t n = 0; n < many; ++n) {
      PyObject* each = PyTuple_GET_ITEM(args[1], n);
      if (!kept->looks[n].holds(each, local)) Py_RETURN_FALSE;
      if (alignment_of(address_of(implementation(each))) != kept->alignments[n]) Py_RETURN_FALSE;
      for (Py_ssize_t k = 0; k < n; ++k) {
        if (PyTuple_GET_ITEM(args[1], k) == each) Py_RETURN_FALSE;
      }
      PyObject* own = PyObject_GenericGetDict(each, nullptr);
      if (own == nullptr) return nullptr;
      const bool has = PyDict_Size(own) != 0;
      Py_DECREF(own);
      if (has) Py_RETURN_FALSE;
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
    auto insides = [&](Py_ssize_t n) -> c10::TensorImpl* {  // of the nth, if it is a tensor of the list
      PyObject* each = n >= 0 && n < many ? PyList_GET_ITEM(args[0], n) : nullptr;
      return each != nullptr && PyObject_TypeCheck(each, tensor_type) ? implementation(each) : nullptr;
    };
    auto ahead = [&](Py_ssize_t n) {
      if (n + OBJECT < many) soon(PyList_GET_ITEM(args[0], n + OBJECT), implementation_at + sizeof(void*));
      if (auto* tensor = insides(n + INSIDES)) soon(tensor, sizeof(c10::TensorImpl));
      soon_behind<STORAGE>(insides(n + BEHIND));
    };
    for (Py_ssize_t n = -OBJECT; n < 0; ++n) ahead(n);
    for (Py_ssize_t n = 0; found != nullptr && n < many; ++n) {
      ahead(n);
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
    const Py_ssize_t many = PyList_GET_SIZE(args[0]);
    auto nth = [&](Py_ssize_t n) { return PyList_GET_ITEM(args[0], n); };
    return PyBool_FromLong(all_of<AUTOGRAD>(many, nth, [&](Py_ssize_t n) {
      if (n + INSIDES < many) soon(PyList_GET_ITEM(args[1], n + INSIDES), implementation_at + sizeof(void*));
      const auto& found = reinterpret_cast<const at::TensorBase&>(implementation(nth(n))->grad());
      PyObject* known = PyList_GET_ITEM(args[1], n);
      return known == Py_None ? !found.defined() : found.unsafeGetTensorImpl() == implementation(known);
    }));
  });
}

// Python's references to a tensor and to its storage, C++'s to the tensor's insides, and those to the storage's, which
// are given by their address.
struct Uses {
  Py_ssize_t references, storage_references, uses, storage_uses;

  static Uses of(PyObject* tensor, PyObject* storage, void* insides) {
    return {
        Py_REFCNT(tensor), Py_REFCNT(storage),
        static_cast<Py_ssize_t>(c10::raw::intrusive_ptr::use_count(implementation(tensor))),
        static_cast<Py_ssize_t>(c10::raw::intrusive_ptr::use_count(static_cast<c10::StorageImpl*>(insides)))};
  }
};

// uses(tensors, storages, their insides): of each (references, storage's references, uses, storage's uses).
PyObject* uses(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!counts_are(count, 3) || !are_lists(args, 3)) return nullptr;
  PyObject* found = PyList_New(0);
  for (Py_ssize_t n = 0; found != nullptr && n < PyList_GET_SIZE(args[0]); ++n) {
    auto nth = [&](Py_ssize_t k) { return PyList_GET_ITEM(args[k], n); };
    const auto each = Uses::of(nth(0), nth(1), PyLong_AsVoidPtr(nth(2)));
    PyObject* row =
        Py_BuildValue("(nnnn)", each.references, each.storage_references, each.uses, each.storage_uses);
    if (row == nullptr || PyList_Append(found, row) < 0) Py_CLEAR(found);
    Py_XDECREF(row);
  }
  return found;
}

// unheld(tensors, storages, their insides, most of each of four): whether nobody else holds any of them.
PyObject* unheld(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!counts_are(count, 7) || !are_lists(args, 3)) return nullptr;
  const Uses most{
      PyLong_AsSsize_t(args[3]), PyLong_AsSsize_t(args[4]), PyLong_AsSsize_t(args[5]), PyLong_AsSsize_t(args[6])};
  if (PyErr_Occurred()) return nullptr;
  auto nth = [&](Py_ssize_t n) { return PyList_GET_ITEM(args[0], n); };
  const bool all = all_of<STORAGE>(PyList_GET_SIZE(args[0]), nth, [&](Py_ssize_t n) {
    void* insides = PyLong_AsVoidPtr(PyList_GET_ITEM(args[2], n));
    if (insides == nullptr) return false;
    const auto each = Uses::of(nth(n), PyList_GET_ITEM(args[1], n), insides);
    return each.references <= most.references && each.storage_references <= most.storage_references &&
           each.uses <= most.uses && each.storage_uses == most.storage_uses;
  });
  return PyErr_Occurred() ? nullptr : PyBool_FromLong(all);
}

// written(tensors): autograd has to see that they were.
PyObject* written(PyObject*, PyObject* tensors) {
  return guarded([&]() -> PyObject* {
    if (!PyList_CheckExact(tensors)) {
      PyErr_SetString(PyExc_TypeError, "takes a list of tensors");
      return nullptr;
    }
    auto nth = [&](Py_ssize_t n) { return PyList_GET_ITEM(tensors, n); };
    all_of<VERSION>(PyList_GET_SIZE(tensors), nth, [&](Py_ssize_t n) {
      auto* tensor = implementation(nth(n));
      if (!tensor->is_inference()) tensor->bump_version();
      return true;
    });
    Py_RETURN_NONE;
  });
}

PyMethodDef functions[] = {
    {"learn", reinterpret_cast<PyCFunction>(learn), METH_FASTCALL, nullptr},
    {"look", look, METH_O, nullptr},
    {"same", same, METH_O, nullptr},
    {"given", given, METH_O, nullptr},
    {"alike", reinterpret_cast<PyCFunction>(alike), METH_FASTCALL, nullptr},
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
    {"kinds", reinterpret_cast<PyCFunction>(kinds), METH_FASTCALL, nullptr},
    {"places", places, METH_O, nullptr},
    {"unchanged", unchanged, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "paramgraph_kit_checks", nullptr, -1, functions};

}  // namespace

PyMODINIT_FUNC PyInit_paramgraph_kit_checks() {
  if (!begin_watching()) return nullptr;
  return PyModule_Create(&definition);
}
