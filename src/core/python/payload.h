// Python objects as memory: what an operation reads or writes, and what keeps it alive.
//
// Everything here needs the GIL, but the spans, which any thread may use as long as the payload lives.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "../operations.h"
#include "../spans.h"

namespace corral {

// An N-dimensional array in host memory.
struct View {
    std::byte* data = nullptr;
    int64_t item = 0;  // bytes
    uint64_t type = 0;
    int32_t dimensions = 0;
    const int64_t* shape = nullptr;
    const int64_t* strides = nullptr;         // bytes
    int64_t shape_store[8], stride_store[8];  // where the exporter gives none of its own

    uint64_t bytes() const;
    // Whether two elements may lie at one address. Errs on the safe side.
    bool may_overlap() const;
};

// Types: DLPack's code and bits for those that it knows; any other number with the top bit, and not the next one.
constexpr uint64_t dlpack_type(uint32_t code, uint32_t bits) { return (code << 16) | bits; }

// Wraps memory of an element type that the buffer protocol cannot tell.
struct NamedBuffer {
    nanobind::object exporter;
    uint64_t type;
};

// Teach the core to read tensors of these types through their DLPack C exchange API. `written` is called with a tuple
// of those that were written, which autograd must know; `dtypes` has all whose elements are what DLPack says.
void register_exchange(nanobind::type_object type, nanobind::type_object other, nanobind::object capsule,
                       nanobind::object written, nanobind::object dtypes);
void release_exchange();
// Whether an object is a tensor of one of these types.
bool is_tensor(PyObject* object);
// The dtype of such a tensor if its elements are what DLPack says, else null; with a Python exception set on errors.
nanobind::object plain_dtype(PyObject* tensor);

class Payload {
  public:
    Payload() = default;
    Payload(Payload&&) = default;
    Payload& operator=(Payload&&) = default;
    ~Payload();

    enum class Access { read, write, update };  // update: read first, and written in place

    // Append an object's memory to `spans`. Returns false with a Python exception set.
    bool add(PyObject* object, Access access);
    // Append every object of a sequence.
    bool add_all(PyObject* sequence, Access access);
    // Append a view, whose memory somebody else keeps alive.
    bool append(const View& view, Access access, Spans& to);
    // Look at an object's memory and keep it alive. Returns false with a Python exception set.
    bool view(PyObject* object, Access access, View& out);
    // Copy what was received through scratch memory to where it belongs, and tell the library of tensors that were
    // written. After the operation; idempotent.
    void settle();
    // Nothing was written.
    void forget_written() { written_.clear(); }

    Spans spans;
    // What `add` has appended: how many bytes of which element type.
    struct Run {
        uint64_t type, bytes;
    };
    std::vector<Run> runs;
    // Element types of all that was added, as one number: the type itself if there is one object.
    uint64_t type() const { return count_ == 1 ? first_ : hash_; }

    void count_type(uint64_t type);

  private:
    struct Scratch {
        std::unique_ptr<std::byte[]> memory;
        View view;
        std::vector<int64_t> shape, strides;
        bool write;
    };
    // Buffers that are held. Their addresses must not change: an exporter may point into its own.
    struct Chunk {
        Py_buffer buffers[8];
        int count = 0;
        std::unique_ptr<Chunk> before;
    };
    std::unique_ptr<Chunk> held_;
    std::vector<nanobind::object> objects_;
    std::vector<PyObject*> written_;  // those of them that will be written, until that is told
    std::vector<Scratch> scratch_;
    uint64_t first_ = 0, hash_ = 0;
    uint32_t count_ = 0;
};

}  // namespace corral
