// A group of ranks as Python sees it: operations on lists of buffers that block without the GIL, or give a request.
#pragma once

#include <nanobind/nanobind.h>

#include <list>
#include <memory>
#include <vector>

#include "../engine.h"
#include "payload.h"

namespace corral {

// The engine, and the memory of operations that nobody refers to any more but that are still under way.
struct Job {
    explicit Job(std::unique_ptr<Engine> e) : engine(std::move(e)) {}
    ~Job();
    std::unique_ptr<Engine> engine;
    struct Orphan {
        std::shared_ptr<Operation> operation;
        Payload payload;
        std::vector<Payload> others;
    };
    std::list<Orphan> orphans;
    void sweep();
};

// An operation under way. Its memory stays alive until it is done, whether or not the request does.
class Request {
  public:
    Request(std::shared_ptr<Job> job, std::shared_ptr<Operation> operation)
        : job_(std::move(job)), operation_(std::move(operation)) {}
    Request(Request&&) = default;
    ~Request();

    nanobind::object wait(double timeout);
    bool done();
    nanobind::object failure();
    int32_t source() const { return operation_->peer; }
    Operation& operation() { return *operation_; }
    // Wait without turning the failure into an object.
    Failure wait_raw(double timeout);
    void in_background() { job_->engine->background(operation_); }

    Payload payload;
    std::vector<Payload> others;

  private:
    void settle();
    std::shared_ptr<Job> job_;
    std::shared_ptr<Operation> operation_;
};

class GroupHandle {
  public:
    GroupHandle(std::shared_ptr<Job> job, uint64_t context, std::vector<uint32_t> members);

    nanobind::object send(nanobind::handle buffers, uint32_t to, uint64_t tag, double timeout);
    nanobind::object recv(nanobind::handle buffers, int32_t from, uint64_t tag, double timeout);
    std::unique_ptr<Request> start(bool sends, nanobind::handle buffers, int32_t peer, uint64_t tag);
    nanobind::object barrier(double timeout);
    std::unique_ptr<Request> ibarrier();
    nanobind::object gather(nanobind::handle buffers, nanobind::handle into, uint32_t root, double timeout);
    std::unique_ptr<Request> igather(nanobind::handle buffers, nanobind::handle into, uint32_t root);
    nanobind::object gather_bytes(nanobind::handle payload, uint32_t root, double timeout);
    nanobind::object broadcast_bytes(nanobind::handle payload, uint32_t root, double timeout);
    nanobind::object gather_rows(nanobind::handle tree, uint32_t root, double timeout);
    void abort() { job_->engine->abort_group(*group_); }
    uint64_t next_sequence() const { return group_->sequence; }

  private:
    uint32_t member(int64_t rank) const;
    int32_t rank_of(int32_t world) const;
    std::unique_ptr<Request> begin_gather(nanobind::handle buffers, nanobind::handle into, uint32_t root);
    std::shared_ptr<Job> job_;
    Group* group_;
};

struct FailureInfo {
    Failure failure;
    Code code;
    uint64_t match;
};

// An object that says why an operation failed.
nanobind::object failure_object(const Failure& failure, const Operation* operation);
// Raise Python signals' exceptions; called while waiting.
bool signals_pending();

}  // namespace corral
