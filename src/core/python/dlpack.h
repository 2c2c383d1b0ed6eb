// The parts of DLPack's C interface that are used, declared after its specification (version 1.x).
#pragma once

#include <cstdint>

#define DLPACK_MAJOR_VERSION 1

enum : int32_t { kDLCPU = 1 };
enum : uint8_t { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLComplex = 5, kDLBool = 6 };

struct DLPackVersion {
    uint32_t major;
    uint32_t minor;
};

struct DLDevice {
    int32_t device_type;
    int32_t device_id;
};

struct DLDataType {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
};

struct DLTensor {
    void* data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset;
};

struct DLPackExchangeAPIHeader {
    DLPackVersion version;
    DLPackExchangeAPIHeader* prev_api;
};

using DLPackDLTensorFromPyObjectNoSync = int (*)(void* object, DLTensor* out);

struct DLPackExchangeAPI {
    DLPackExchangeAPIHeader header;
    void* managed_tensor_allocator;
    void* managed_tensor_from_py_object_no_sync;
    void* managed_tensor_to_py_object_no_sync;
    DLPackDLTensorFromPyObjectNoSync dltensor_from_py_object_no_sync;
    void* current_work_stream;
};
