#include "keys.h"

namespace nb = nanobind;

namespace corral {
namespace {

// Set once, under the GIL, and never let go.
PyObject *entries, *kinds, *elsewhere;

struct Asked {
    bool nested, leaves_only;
};

// Guards against containers that are nested too deeply, or hold themselves.
class Descent {
  public:
    Descent() : entered_(Py_EnterRecursiveCall(" while looking for keys") == 0) {}
    ~Descent() {
        if (entered_) Py_LeaveRecursiveCall();
    }
    explicit operator bool() const { return entered_; }

  private:
    bool entered_;
};

// Whether an entry is a container: 1 or 0, or -1 with a Python exception set.
int is_container(PyObject* value) {
    auto* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
    if (PyObject* known = PyDict_GetItemWithError(kinds, type)) return known == Py_True;
    if (PyErr_Occurred()) return -1;
    nb::object found = nb::steal(PyObject_GetItem(kinds, type));
    return found.is_valid() ? PyObject_IsTrue(found.ptr()) : -1;
}

// The prefix and one key more.
nb::object extended(PyObject* prefix, PyObject* key) {
    Py_ssize_t length = PyTuple_Size(prefix);
    nb::object name = nb::steal(PyTuple_New(length + 1));
    if (!name.is_valid()) return name;
    for (Py_ssize_t i = 0; i < length; ++i)
        PyTuple_SetItem(name.ptr(), i, nb::borrow(PyTuple_GetItem(prefix, i)).release().ptr());
    PyTuple_SetItem(name.ptr(), length, nb::borrow(key).release().ptr());
    return name;
}

bool add(PyObject* found, PyObject* prefix, PyObject* key) {
    if (PyTuple_Size(prefix) == 0) return PyList_Append(found, key) == 0;
    nb::object name = extended(prefix, key);
    return name.is_valid() && PyList_Append(found, name.ptr()) == 0;
}

bool collect(Asked asked, PyObject* container, PyObject* prefix, PyObject* found) {
    Descent descent;
    if (!descent) return false;
    nb::object source = nb::steal(PyObject_GetAttr(container, entries));
    if (!source.is_valid()) return false;
    if (!PyDict_CheckExact(source.ptr())) {
        nb::object none =
            nb::steal(PyObject_CallFunctionObjArgs(elsewhere, container, prefix, asked.nested ? Py_True : Py_False,
                                                   asked.leaves_only ? Py_True : Py_False, found, nullptr));
        return none.is_valid();
    }
    Py_ssize_t at = 0;
    PyObject *next_key, *next_value;
    while (PyDict_Next(source.ptr(), &at, &next_key, &next_value)) {
        nb::object key = nb::borrow(next_key), value = nb::borrow(next_value);  // looking may run Python
        int inner = is_container(value.ptr());
        if (inner < 0) return false;
        if (inner && asked.nested) {
            nb::object name = extended(prefix, key.ptr());
            if (!name.is_valid() || !collect(asked, value.ptr(), name.ptr(), found)) return false;
        }
        if (!(inner && asked.leaves_only) && !add(found, prefix, key.ptr())) return false;
    }
    return true;
}

Py_ssize_t count(Asked asked, PyObject* container) {
    Descent descent;
    if (!descent) return -1;
    nb::object source = nb::steal(PyObject_GetAttr(container, entries));
    if (!source.is_valid()) return -1;
    if (!PyDict_CheckExact(source.ptr())) {
        nb::object prefix = nb::steal(PyTuple_New(0)), found = nb::steal(PyList_New(0));
        if (!prefix.is_valid() || !found.is_valid() || !collect(asked, container, prefix.ptr(), found.ptr())) return -1;
        return PyList_Size(found.ptr());
    }
    Py_ssize_t found = 0, at = 0;
    PyObject *key, *next;
    while (PyDict_Next(source.ptr(), &at, &key, &next)) {
        nb::object value = nb::borrow(next);
        int inner = is_container(value.ptr());
        if (inner < 0) return -1;
        if (!(inner && asked.leaves_only)) ++found;
        if (!inner || !asked.nested) continue;
        Py_ssize_t within = count(asked, value.ptr());
        if (within < 0) return -1;
        found += within;
    }
    return found;
}

}  // namespace

void register_keys(nb::str names, nb::dict of_classes, nb::callable of_others) {
    entries = names.release().ptr();
    kinds = of_classes.release().ptr();
    elsewhere = of_others.release().ptr();
}

nb::list collect_keys(nb::handle container, bool nested, bool leaves_only) {
    nb::list found;
    if (!collect({nested, leaves_only}, container.ptr(), nb::tuple().ptr(), found.ptr())) throw nb::python_error();
    return found;
}

Py_ssize_t count_keys(nb::handle container, bool nested, bool leaves_only) {
    Py_ssize_t found = count({nested, leaves_only}, container.ptr());
    if (found < 0) throw nb::python_error();
    return found;
}

}  // namespace corral
