#include "payload.h"

#include <algorithm>
#include <cstring>

#include "dlpack.h"

namespace nb = nanobind;

namespace corral {
namespace {

// Runs shorter than this are packed: describing them would cost more than moving them.
constexpr uint64_t shortest_run = 256;

struct Exchange {
    PyTypeObject* types[2] = {};
    PyObject* is_neg = nullptr;
    PyObject* is_conj = nullptr;
    PyObject* written = nullptr;
    PyObject* dtypes = nullptr;
    DLPackDLTensorFromPyObjectNoSync describe = nullptr;
};
Exchange exchange;  // set once, under the GIL, when the process first meets such a tensor

uint64_t mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9fb21c651e98df25ull;
    return h ^ (h >> 29);
}

// The element type that a format string of the buffer protocol names, or 0.
uint64_t type_of_format(const char* format, int64_t item) {
    if (!format) return dlpack_type(kDLUInt, 8);
    if (*format == '@' || *format == '=' || (*format == '<' && item > 0)) ++format;
    if (*format == '>' || *format == '!') {
        if (item != 1) return 0;
        ++format;
    }
    bool complex = *format == 'Z';
    if (complex) ++format;
    if (format[0] == 0 || format[1] != 0) return 0;
    auto bits = static_cast<uint32_t>(item * 8);
    switch (*format) {
        case '?':
            return dlpack_type(kDLBool, 8);
        case 'b':
        case 'h':
        case 'i':
        case 'l':
        case 'q':
        case 'n':
            return dlpack_type(kDLInt, bits);
        case 'c':
        case 'B':
        case 'H':
        case 'I':
        case 'L':
        case 'Q':
        case 'N':
            return dlpack_type(kDLUInt, bits);
        case 'e':
        case 'f':
        case 'd':
        case 'g':
            return dlpack_type(complex ? kDLComplex : kDLFloat, bits);
        default:
            return 0;
    }
}

bool truth(PyObject* method, PyObject* self, bool& out) {
    PyObject* r = PyObject_Vectorcall(method, &self, 1, nullptr);  // of the stable ABI, unlike PyObject_CallOneArg
    if (!r) return false;
    out = r == Py_True;
    Py_DECREF(r);
    return true;
}

template <typename T>
void move_row(std::byte* packed, std::byte* strided, int64_t n, int64_t stride, bool pack) {
    for (int64_t i = 0; i < n; ++i, packed += sizeof(T), strided += stride) {
        if (pack)
            std::memcpy(packed, strided, sizeof(T));
        else
            std::memcpy(strided, packed, sizeof(T));
    }
}

void move_elements(std::byte* packed, const View& v, bool pack) {
    int last = v.dimensions - 1;
    int64_t n = v.shape[last], stride = v.strides[last];
    std::vector<int64_t> index(v.dimensions, 0);
    for (;;) {
        std::byte* at = v.data;
        for (int d = 0; d < last; ++d) at += index[d] * v.strides[d];
        switch (v.item) {
            case 1:
                move_row<uint8_t>(packed, at, n, stride, pack);
                break;
            case 2:
                move_row<uint16_t>(packed, at, n, stride, pack);
                break;
            case 4:
                move_row<uint32_t>(packed, at, n, stride, pack);
                break;
            case 8:
                move_row<uint64_t>(packed, at, n, stride, pack);
                break;
            default:
                for (int64_t i = 0; i < n; ++i) {
                    if (pack)
                        std::memcpy(packed + i * v.item, at + i * stride, v.item);
                    else
                        std::memcpy(at + i * stride, packed + i * v.item, v.item);
                }
        }
        packed += n * v.item;
        int d = last - 1;
        while (d >= 0 && ++index[d] == v.shape[d]) index[d--] = 0;
        if (d < 0) return;
    }
}

}  // namespace

uint64_t View::bytes() const {
    uint64_t n = item;
    for (int d = 0; d < dimensions; ++d) n *= shape[d];
    return n;
}

bool View::may_overlap() const {
    // With the dimensions by growing stride, each must step over all that the smaller ones reach.
    int order[64], n = 0;
    for (int d = 0; d < dimensions; ++d) {
        if (shape[d] == 0) return false;
        if (shape[d] > 1) order[n++] = d;
    }
    std::sort(order, order + n, [&](int a, int b) { return std::abs(strides[a]) < std::abs(strides[b]); });
    int64_t reach = item;
    for (int i = 0; i < n; ++i) {
        int64_t step = std::abs(strides[order[i]]);
        if (step < reach) return true;
        reach = step * (shape[order[i]] - 1) + reach;
    }
    return false;
}

void register_exchange(nb::type_object type, nb::type_object other, nb::object capsule, nb::object written,
                       nb::object dtypes) {
    auto* header = static_cast<DLPackExchangeAPIHeader*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (!header) throw nb::python_error();
    while (header && header->version.major != DLPACK_MAJOR_VERSION) header = header->prev_api;
    if (!header) throw nb::type_error("the DLPack exchange API has an unknown version");
    auto* api = reinterpret_cast<DLPackExchangeAPI*>(header);
    if (!api->dltensor_from_py_object_no_sync) throw nb::type_error("the DLPack exchange API lacks a fast export");
    release_exchange();
    exchange.describe = api->dltensor_from_py_object_no_sync;
    exchange.is_neg = nb::object(type.attr("is_neg")).release().ptr();
    exchange.is_conj = nb::object(type.attr("is_conj")).release().ptr();
    exchange.written = written.release().ptr();
    exchange.dtypes = dtypes.release().ptr();
    exchange.types[0] = reinterpret_cast<PyTypeObject*>(type.release().ptr());
    exchange.types[1] = reinterpret_cast<PyTypeObject*>(other.release().ptr());
}

void release_exchange() {
    Py_CLEAR(exchange.is_neg);
    Py_CLEAR(exchange.is_conj);
    Py_CLEAR(exchange.written);
    Py_CLEAR(exchange.dtypes);
    for (auto& t : exchange.types)
        if (t) {
            Py_DECREF(reinterpret_cast<PyObject*>(t));
            t = nullptr;
        }
    exchange.describe = nullptr;
}

bool is_tensor(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    return exchange.describe && (type == exchange.types[0] || type == exchange.types[1]);
}

nb::object plain_dtype(PyObject* tensor) {
    nb::object dtype = nb::steal(PyObject_GetAttrString(tensor, "dtype"));
    return dtype.is_valid() && PySequence_Contains(exchange.dtypes, dtype.ptr()) == 1 ? dtype : nb::object();
}

Payload::~Payload() {
    while (held_) {
        for (int i = 0; i < held_->count; ++i) PyBuffer_Release(&held_->buffers[i]);
        held_ = std::move(held_->before);  // one by one: a long chain must not end by recursion
    }
}

void Payload::count_type(uint64_t type) {
    if (count_++ == 0)
        first_ = hash_ = type;
    else
        hash_ = (mix(mix(hash_, type), count_) | 1ull << 62) & ~(1ull << 63);
}

bool Payload::view(PyObject* object, Access access, View& v) {
    if (is_tensor(object)) {
        DLTensor t;
        if (exchange.describe(object, &t) != 0) return false;
        if (t.device.device_type != kDLCPU) {
            PyErr_SetString(PyExc_BufferError, "the tensor is not in host memory");
            return false;
        }
        if (t.dtype.lanes != 1 || t.dtype.bits % 8 != 0) {
            PyErr_SetString(PyExc_BufferError, "elements of several lanes or of less than a byte cannot be sent");
            return false;
        }
        bool lazy = false;
        if (!truth(exchange.is_neg, object, lazy)) return false;
        if (!lazy && t.dtype.code == kDLComplex && !truth(exchange.is_conj, object, lazy)) return false;
        if (lazy) {
            PyErr_SetString(PyExc_BufferError,
                            "the tensor's memory does not hold its values: resolve_neg, resolve_conj");
            return false;
        }
        v.data = static_cast<std::byte*>(t.data) + t.byte_offset;
        v.item = t.dtype.bits / 8;
        v.type = dlpack_type(t.dtype.code, t.dtype.bits);
        v.dimensions = t.ndim;
        v.shape = t.shape;
        if (t.ndim > 8) {
            PyErr_SetString(PyExc_BufferError, "the tensor has more than 8 dimensions");
            return false;
        }
        for (int d = t.ndim - 1; d >= 0; --d)
            v.stride_store[d] =
                t.strides ? t.strides[d] * v.item : (d == t.ndim - 1 ? v.item : v.stride_store[d + 1] * t.shape[d + 1]);
        v.strides = v.stride_store;
        if (v.bytes() != 0 && !t.data) {
            PyErr_SetString(PyExc_BufferError, "the tensor has no memory");
            return false;
        }
        objects_.push_back(nb::borrow(object));
        if (access != Access::read) written_.push_back(object);
        return true;
    }
    uint64_t named = 0;
    NamedBuffer* wrapper;
    if (nb::try_cast(nb::handle(object), wrapper) && wrapper) {
        named = wrapper->type;
        object = wrapper->exporter.ptr();
    }
    if (!held_ || held_->count == 8) {
        std::unique_ptr<Chunk> chunk(new Chunk);  // its buffers as they are
        chunk->before = std::move(held_);
        held_ = std::move(chunk);
    }
    Py_buffer* b = &held_->buffers[held_->count];
    int flags = PyBUF_STRIDES | PyBUF_FORMAT | (access == Access::read ? 0 : PyBUF_WRITABLE);
    if (PyObject_GetBuffer(object, b, flags) != 0) {
        return false;
    }
    v.data = static_cast<std::byte*>(b->buf);
    v.item = b->itemsize;
    v.dimensions = b->ndim;
    static_assert(sizeof(Py_ssize_t) == sizeof(int64_t));
    v.shape = reinterpret_cast<const int64_t*>(b->shape);
    v.strides = reinterpret_cast<const int64_t*>(b->strides);
    v.type = named ? named : type_of_format(b->format, b->itemsize);
    if (v.type == 0) {
        PyErr_Format(PyExc_BufferError, "elements of format '%s' cannot be sent as they are", b->format);
        PyBuffer_Release(b);
        return false;
    }
    if (!v.strides && v.dimensions > 0) {  // ctypes gives none, although it is asked: its arrays are contiguous
        if (v.dimensions > 8) {
            PyErr_Format(PyExc_BufferError, "%d dimensions and no strides", v.dimensions);
            PyBuffer_Release(b);
            return false;
        }
        int64_t step = v.item;
        for (int d = v.dimensions - 1; d >= 0; step *= v.shape[d--]) v.stride_store[d] = step;
        v.strides = v.stride_store;
    }
    ++held_->count;
    return true;
}

bool Payload::add(PyObject* object, Access access) {
    View v;
    if (!view(object, access, v)) return false;
    count_type(v.type);
    runs.push_back({v.type, v.bytes()});
    return append(v, access, spans);
}

bool Payload::add_all(PyObject* sequence, Access access) {
    if (PyList_Check(sequence)) {
        Py_ssize_t n = PyList_Size(sequence);
        for (Py_ssize_t i = 0; i < n; ++i)
            if (!add(PyList_GetItem(sequence, i), access)) return false;
        return true;
    }
    if (PyTuple_Check(sequence)) {
        Py_ssize_t n = PyTuple_Size(sequence);
        for (Py_ssize_t i = 0; i < n; ++i)
            if (!add(PyTuple_GetItem(sequence, i), access)) return false;
        return true;
    }
    PyErr_SetString(PyExc_TypeError, "buffers must be a list or a tuple");
    return false;
}

bool Payload::append(const View& v, Access access, Spans& to) {
    uint64_t total = v.bytes();
    if (total == 0) return true;
    if (access != Access::read && v.may_overlap()) {
        PyErr_SetString(PyExc_ValueError, "elements of the array overlap in memory");
        return false;
    }
    int64_t run = v.item;
    int outer = v.dimensions - 1;
    for (; outer >= 0; --outer) {
        if (v.shape[outer] == 1) continue;
        if (v.strides[outer] != run) break;
        run *= v.shape[outer];
    }
    if (outer < 0) {
        to.add(v.data, total);
        return true;
    }
    if (static_cast<uint64_t>(run) >= shortest_run) {
        std::vector<int64_t> index(outer + 1, 0);
        for (;;) {
            std::byte* at = v.data;
            for (int d = 0; d <= outer; ++d) at += index[d] * v.strides[d];
            to.add(at, run);
            int d = outer;
            while (d >= 0 && ++index[d] == v.shape[d]) index[d--] = 0;
            if (d < 0) return true;
        }
    }
    Scratch s;
    s.memory.reset(new (std::nothrow) std::byte[total]);
    if (!s.memory) {
        PyErr_NoMemory();
        return false;
    }
    s.view = v;
    s.shape.assign(v.shape, v.shape + v.dimensions);
    s.strides.assign(v.strides, v.strides + v.dimensions);
    s.view.shape = s.shape.data();
    s.view.strides = s.strides.data();
    s.write = access != Access::read;
    if (access != Access::write) move_elements(s.memory.get(), s.view, true);
    to.add(s.memory.get(), total);
    scratch_.push_back(std::move(s));
    return true;
}

void Payload::settle() {
    for (auto& s : scratch_)
        if (s.write) move_elements(s.memory.get(), s.view, false);
    scratch_.clear();
    if (written_.empty() || !exchange.written) return;
    nb::error_scope pending;  // an exception that is under way stays what it is
    if (nb::object tensors = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(written_.size()))); tensors.is_valid()) {
        for (size_t i = 0; i < written_.size(); ++i)
            PyTuple_SetItem(tensors.ptr(), static_cast<Py_ssize_t>(i), nb::borrow(written_[i]).release().ptr());
        PyObject* argument = tensors.ptr();
        nb::object done = nb::steal(PyObject_Vectorcall(exchange.written, &argument, 1, nullptr));
        if (!done.is_valid()) PyErr_WriteUnraisable(exchange.written);
    } else {
        PyErr_Clear();
    }
    written_.clear();
}

}  // namespace corral
