#include "tree.h"

#include <cstring>

namespace nb = nanobind;

namespace corral {
namespace {

struct Container {
    PyTypeObject* type;
    PyObject* attribute;
};
std::vector<Container> containers;  // added to under the GIL, once for each library

constexpr int deepest = 200;

// Two independent multiplicative hashes, so that 128 bits really are 128.
class Printer {
  public:
    void add(uint64_t v) {
        a_ = (a_ ^ v) * 0x9fb21c651e98df25ull;
        a_ ^= a_ >> 32;
        b_ = (b_ + v) * 0xd6e8feb86659fd93ull;
        b_ ^= b_ >> 29;
    }
    void add(const char* text, Py_ssize_t n) {
        add(static_cast<uint64_t>(n));
        for (; n >= 8; n -= 8, text += 8) {
            uint64_t word;
            std::memcpy(&word, text, 8);
            add(word);
        }
        uint64_t rest = 0;
        std::memcpy(&rest, text, static_cast<size_t>(n));
        add(rest);
    }
    void add(const View& v, int from) {
        add(v.type);
        add(static_cast<uint64_t>(v.item) << 8 | static_cast<uint64_t>(v.dimensions - from));
        for (int d = from; d < v.dimensions; ++d) add(static_cast<uint64_t>(v.shape[d]));
    }
    Fingerprint result() const { return {a_, b_}; }

  private:
    uint64_t a_ = 0x243f6a8885a308d3ull, b_ = 0x13198a2e03707344ull;
};

template <typename Visit>
bool walk(PyObject* tree, Printer& print, const Visit& leaf, int depth) {
    if (depth > deepest) {
        PyErr_SetString(PyExc_RecursionError, "the structure is nested too deeply");
        return false;
    }
    nb::object held;
    PyObject* dict = nullptr;
    if (PyDict_CheckExact(tree)) {
        dict = tree;
    } else {
        for (auto& c : containers)
            if (Py_TYPE(tree) == c.type) {
                dict = PyObject_GetAttr(tree, c.attribute);
                if (!dict) return false;
                held = nb::steal(dict);
                if (!PyDict_Check(dict)) {
                    PyErr_SetString(PyExc_TypeError, "a container's entries must be a dict");
                    return false;
                }
                break;
            }
    }
    if (!dict) return leaf(tree);
    print.add(0x7b);
    print.add(static_cast<uint64_t>(PyDict_Size(dict)));
    Py_ssize_t at = 0;
    PyObject *key, *value;
    while (PyDict_Next(dict, &at, &key, &value)) {
        Py_ssize_t n;
        const char* text = PyUnicode_Check(key) ? PyUnicode_AsUTF8AndSize(key, &n) : nullptr;
        if (!text) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "keys must be strings");
            return false;
        }
        print.add(text, n);
        if (!walk(value, print, leaf, depth + 1)) return false;
    }
    return true;
}

}  // namespace

void register_container(nb::type_object type, nb::str attribute) {
    for (auto& c : containers)
        if (reinterpret_cast<PyObject*>(c.type) == type.ptr()) return;
    containers.push_back({reinterpret_cast<PyTypeObject*>(type.release().ptr()), attribute.release().ptr()});
}

bool flatten(PyObject* tree, Payload& payload, Fingerprint& fingerprint) {
    Printer print;
    auto leaf = [&](PyObject* object) {
        View v;
        if (!payload.view(object, Payload::Access::read, v)) return false;
        print.add(v, 0);
        payload.count_type(v.type);
        return payload.append(v, Payload::Access::read, payload.spans);
    };
    if (!walk(tree, print, leaf, 0)) return false;
    fingerprint = print.result();
    return true;
}

bool flatten_rows(PyObject* tree, int64_t count, Payload& payload, Rows& rows) {
    Printer print;
    rows.rows.resize(static_cast<size_t>(count));
    auto leaf = [&](PyObject* object) {
        View v;
        if (!payload.view(object, Payload::Access::write, v)) return false;
        if (v.dimensions == 0 || v.shape[0] != count) return false;
        print.add(v, 1);
        payload.count_type(v.type);
        if (v.bytes() == 0) return true;
        if (v.may_overlap()) {
            PyErr_SetString(PyExc_ValueError, "elements of the array overlap in memory");
            return false;
        }
        View row = v;
        row.dimensions = v.dimensions - 1;
        row.shape = v.shape + 1;
        row.strides = v.strides + 1;
        for (int64_t r = 0; r < count; ++r, row.data += v.strides[0])
            if (!payload.append(row, Payload::Access::write, rows.rows[static_cast<size_t>(r)])) return false;
        return true;
    };
    if (!walk(tree, print, leaf, 0)) return false;
    rows.fingerprint = print.result();
    return true;
}

}  // namespace corral
