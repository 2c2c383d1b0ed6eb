#include "tree.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "dlpack.h"

namespace nb = nanobind;

namespace corral {
namespace {

struct Container {
    PyTypeObject* type;
    PyObject* entries;
    PyObject* batch_size;
    std::vector<PyObject*> others;
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
    // A container's batch size from dimension `from` on; or that it has none, for a length of -1.
    void add_batch(const int64_t* sizes, int length, int from) {
        mix_batch(static_cast<uint64_t>(length < 0 ? 0 : 1 + std::max(length - from, 0)));
        for (int d = from; d < length; ++d) mix_batch(static_cast<uint64_t>(sizes[d]));
    }
    Print result() const { return {{a_, b_}, c_}; }

  private:
    void mix_batch(uint64_t v) {
        c_ = (c_ ^ v) * 0xa0761d6478bd642full;
        c_ ^= c_ >> 31;
    }
    uint64_t a_ = 0x243f6a8885a308d3ull, b_ = 0x13198a2e03707344ull, c_ = 0xa4093822299f31d0ull;
};

// Read a batch size of at most `most` dimensions. Returns its length, or -1 with a Python exception set.
int read_batch(PyObject* container, PyObject* attribute, int64_t* sizes, int most) {
    nb::object held = nb::steal(PyObject_GetAttr(container, attribute));
    if (!held.is_valid()) return -1;
    if (!PyTuple_Check(held.ptr()) || PyTuple_Size(held.ptr()) > most) {
        PyErr_SetString(PyExc_TypeError, "a batch size must be a tuple of a few lengths");
        return -1;
    }
    int length = static_cast<int>(PyTuple_Size(held.ptr()));
    for (int d = 0; d < length; ++d) {
        sizes[d] = PyLong_AsLongLong(PyTuple_GetItem(held.ptr(), d));
        if (sizes[d] == -1 && PyErr_Occurred()) return -1;
    }
    return length;
}

// Where an array's elements lie: from the first byte to the one behind the last.
std::pair<std::byte*, std::byte*> bounds(const View& v) {
    std::byte *low = v.data, *high = v.data + v.item;
    for (int d = 0; d < v.dimensions; ++d) (v.strides[d] < 0 ? low : high) += (v.shape[d] - 1) * v.strides[d];
    return {low, high};
}

struct Extent {
    std::byte *low, *high;
    bool operator<(const Extent& other) const { return low < other.low; }
};

// Where one leaf is written.
struct Written {
    std::byte *low, *high;
    std::byte *row_low, *row_high;  // of its first row
    int64_t stride;                 // from row to row

    bool operator<(const Written& other) const { return low < other.low; }
};

template <typename T>
bool apart(std::vector<T>& parts) {
    if (!std::is_sorted(parts.begin(), parts.end())) std::sort(parts.begin(), parts.end());
    return std::adjacent_find(parts.begin(), parts.end(), [](const T& a, const T& b) { return b.low < a.high; }) ==
           parts.end();
}

// Whether surely no two leaves share memory: all of them lie one behind the other, or all their rows do, as in
// columns of one matrix.
bool surely_apart(std::vector<Written>& leaves, int64_t count) {
    if (apart(leaves)) return true;
    std::vector<Extent> rows;
    rows.reserve(leaves.size() * static_cast<size_t>(count));
    for (auto& leaf : leaves)
        for (int64_t r = 0; r < count; ++r)
            rows.push_back({leaf.row_low + r * leaf.stride, leaf.row_high + r * leaf.stride});
    return apart(rows);
}

// `count` is what batch sizes start with where the leaves hold rows; -1 where the tree itself is a row. `enter` may
// refuse a container, or, with none, a key whose type is derived from that of strings.
template <typename Visit, typename Enter>
bool walk(PyObject* tree, Printer& print, const Visit& leaf, const Enter& enter, int64_t count, int depth) {
    if (depth > deepest) {
        PyErr_SetString(PyExc_RecursionError, "the structure is nested too deeply");
        return false;
    }
    nb::object held;
    PyObject* dict = nullptr;
    if (PyDict_CheckExact(tree)) {
        dict = tree;
        print.add_batch(nullptr, -1, 0);
    } else {
        for (auto& c : containers)
            if (Py_TYPE(tree) == c.type) {
                if (!enter(tree, &c)) return false;
                int64_t sizes[64];
                int length = read_batch(tree, c.batch_size, sizes, 64);
                if (length < 0 || (count >= 0 && length > 0 && sizes[0] != count)) return false;
                print.add_batch(sizes, length, count >= 0 ? 1 : 0);
                dict = PyObject_GetAttr(tree, c.entries);
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
        if (!PyUnicode_CheckExact(key) && !enter(key, nullptr)) return false;
        print.add(text, n);
        if (!walk(value, print, leaf, enter, count, depth + 1)) return false;
    }
    return true;
}

bool enter_all(PyObject*, const Container*) { return true; }

// Add the attributes that a container has besides its entries. Returns false if it is not plain, or with a Python
// exception set.
bool add_others(PyObject* container, const Container& c, Printer& print) {
    if (c.others.empty()) return false;
    print.add(reinterpret_cast<uintptr_t>(c.type));
    for (PyObject* name : c.others) {
        nb::object held = nb::steal(PyObject_GetAttr(container, name));
        if (!held.is_valid()) {
            if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return false;
            PyErr_Clear();
        }
        if (!held.is_valid() || held.is_none()) {
            print.add(0);
            continue;
        }
        Py_ssize_t n;
        const char* text = PyUnicode_Check(held.ptr()) ? PyUnicode_AsUTF8AndSize(held.ptr(), &n) : nullptr;
        if (!text) return false;
        print.add(1);
        print.add(text, n);
    }
    return true;
}

// Whether an array's elements are what its view says; if not, with a Python exception set. DLPack calls those of
// torch's integers of less than 8 bits integers of 8.
bool is_exact(PyObject* object, const View& v) {
    if ((v.type != dlpack_type(kDLInt, 8) && v.type != dlpack_type(kDLUInt, 8)) || !is_tensor(object)) return true;
    if (plain_dtype(object).is_valid()) return true;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_BufferError, "the tensor has elements of less than a byte");
    return false;
}

// Whether these are numbers that arrays.buffers, too, would move as they are: not those of the x87.
bool is_plain(const View& v) {
    auto code = static_cast<uint32_t>(v.type >> 16), bits = static_cast<uint32_t>(v.type & 0xffff);
    return !(code == kDLFloat && bits > 64) && !(code == kDLComplex && bits > 128);
}

}  // namespace

void register_container(nb::type_object type, nb::str entries, nb::str batch_size, nb::tuple others) {
    for (auto& c : containers)
        if (reinterpret_cast<PyObject*>(c.type) == type.ptr()) return;
    Container c{
        reinterpret_cast<PyTypeObject*>(type.release().ptr()), entries.release().ptr(), batch_size.release().ptr(), {}};
    for (nb::handle name : others) c.others.push_back(nb::str(name).release().ptr());
    containers.push_back(std::move(c));
}

bool flatten(PyObject* tree, Payload& payload, Fingerprint& fingerprint) {
    Printer print;
    auto leaf = [&](PyObject* object) {
        View v;
        if (!payload.view(object, Payload::Access::read, v) || !is_exact(object, v)) return false;
        print.add(v, 0);
        payload.count_type(v.type);
        return payload.append(v, Payload::Access::read, payload.spans);
    };
    if (!walk(tree, print, leaf, enter_all, -1, 0)) return false;
    fingerprint = print.result().whole();
    return true;
}

bool flatten_rows(PyObject* tree, int64_t count, Payload& payload, Rows& rows) {
    Printer print;
    rows.rows.resize(static_cast<size_t>(count));
    std::vector<Written> written;
    auto leaf = [&](PyObject* object) {
        View v;
        if (!payload.view(object, Payload::Access::write, v) || !is_exact(object, v)) return false;
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
        auto [low, high] = bounds(v);
        auto [row_low, row_high] = bounds(row);
        written.push_back({low, high, row_low, row_high, v.strides[0]});
        for (int64_t r = 0; r < count; ++r, row.data += v.strides[0])
            if (!payload.append(row, Payload::Access::write, rows.rows[static_cast<size_t>(r)])) return false;
        return true;
    };
    if (!walk(tree, print, leaf, enter_all, count, 0) || !surely_apart(written, count)) return false;
    rows.print = print.result();
    return true;
}

bool lie_apart(PyObject* arrays) {
    Payload payload;  // keeps what it has looked at until the end
    std::vector<Extent> extents;
    extents.reserve(static_cast<size_t>(PyList_Size(arrays)));
    for (Py_ssize_t i = 0; i < PyList_Size(arrays); ++i) {
        View v;
        if (!payload.view(PyList_GetItem(arrays, i), Payload::Access::read, v)) {
            PyErr_Clear();  // whoever takes the closer look meets it again, and says it better
            return false;
        }
        if (v.bytes() == 0) continue;
        auto [low, high] = bounds(v);
        extents.push_back({low, high});
    }
    return apart(extents);
}

nb::object survey(PyObject* tree, PyTypeObject* array, bool write) {
    Printer print;
    Payload payload;  // keeps what it has looked at until the end
    std::vector<PyObject*> leaves;
    std::vector<Extent> extents;
    auto access = write ? Payload::Access::write : Payload::Access::read;
    auto leaf = [&](PyObject* object) {
        View v;
        bool plain = Py_TYPE(object) == array;
        if (!(plain || is_tensor(object)) || !payload.view(object, access, v) || !is_plain(v)) return false;
        if (plain) {
            print.add(1);
        } else {  // what DLPack has one name for may be several dtypes of torch's
            nb::object dtype = plain_dtype(object);
            if (!dtype.is_valid()) return false;
            print.add(reinterpret_cast<uintptr_t>(dtype.ptr()));
        }
        print.add(v, 0);
        leaves.push_back(object);
        if (!write || v.bytes() == 0) return true;
        auto [low, high] = bounds(v);
        extents.push_back({low, high});
        return !v.may_overlap();
    };
    auto enter = [&](PyObject* object, const Container* c) { return c && add_others(object, *c, print); };
    bool plain = walk(tree, print, leaf, enter, -1, 0) && (!write || apart(extents));
    payload.forget_written();
    if (!plain) {
        PyErr_Clear();  // whoever takes the closer look meets it again, and says it better
        return nb::none();
    }
    nb::object found = nb::steal(PyList_New(static_cast<Py_ssize_t>(leaves.size())));
    if (!found.is_valid()) throw nb::python_error();
    for (size_t i = 0; i < leaves.size(); ++i)
        PyList_SetItem(found.ptr(), static_cast<Py_ssize_t>(i), nb::borrow(leaves[i]).release().ptr());
    Print result = print.result();
    uint64_t words[] = {result.structure.low, result.structure.high, result.batches};
    return nb::make_tuple(nb::bytes(words, sizeof words), found);
}

}  // namespace corral
