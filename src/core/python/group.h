// A group of ranks as Python sees it: operations on lists of buffers that block without the GIL, or give a request.
#pragma once

#include <nanobind/nanobind.h>

#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "../engine.h"
#include "../exchange.h"
#include "../gather.h"
#include "../reduction.h"
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
    // Wait for some seconds at most; if it has not ended then, it goes on.
    void linger(double seconds);
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
    // Collectives. Without a timeout they are started and give a request; with one they are waited for, and give None
    // or why they failed. `label` names the call, for logs and errors.
    nanobind::object barrier(nanobind::handle timeout);
    nanobind::object gather(nanobind::handle buffers, nanobind::handle into, uint32_t root, uint32_t label,
                            nanobind::handle timeout);
    nanobind::object broadcast(nanobind::handle buffers, uint32_t root, uint32_t label, nanobind::handle timeout);
    nanobind::object scatter(nanobind::handle parts, nanobind::handle into, uint32_t root, uint32_t label,
                             nanobind::handle timeout);
    nanobind::object all_gather(nanobind::handle buffers, nanobind::handle into, uint32_t label,
                                nanobind::handle timeout);
    nanobind::object all_to_all(nanobind::handle parts, nanobind::handle into, uint32_t label,
                                nanobind::handle timeout);
    nanobind::object all_reduce(nanobind::handle buffers, uint32_t op, double factor, uint32_t label,
                                nanobind::handle timeout);
    nanobind::object reduce(nanobind::handle buffers, uint32_t op, double factor, uint32_t root, uint32_t label,
                            nanobind::handle timeout);
    nanobind::object reduce_scatter(nanobind::handle parts, nanobind::handle into, uint32_t op, double factor,
                                    uint32_t label, nanobind::handle timeout);
    // Of bytes whose number only the sender knows.
    nanobind::object gather_bytes(nanobind::handle payload, uint32_t root, uint32_t label, double timeout);
    nanobind::object broadcast_bytes(nanobind::handle payload, uint32_t root, uint32_t label, double timeout);
    nanobind::object all_gather_bytes(nanobind::handle payload, uint32_t label, double timeout);
    nanobind::object scatter_bytes(nanobind::handle payloads, uint32_t root, uint32_t label, double timeout);
    nanobind::object all_to_all_bytes(nanobind::handle payloads, uint32_t label, double timeout);
    nanobind::object recv_bytes(int32_t from, uint64_t tag, double timeout);
    // True if all was written, False if the trees did not fit as they are.
    nanobind::object gather_rows(nanobind::handle tree, uint32_t root, uint32_t label, double timeout);
    // Fail the next collective, which this rank was called with arguments that make no sense for.
    void refuse(uint32_t label);
    nanobind::object late();
    void abort() { job_->engine->abort_group(*group_); }
    uint64_t next_sequence() const { return group_->sequence; }

  private:
    uint32_t member(int64_t rank) const;
    int32_t rank_of(int32_t world) const;
    template <typename Fill>
    std::unique_ptr<Request> begin(const std::shared_ptr<Collective>& operation, Fill&& fill);
    void add_parts(Request& request, Exchange& operation, nanobind::handle parts, bool sends);
    void divide(Request& request, Exchange& operation, nanobind::handle whole);
    void add_runs(Reduce& operation, const Payload& payload, uint32_t op, double factor);
    void check_reducible(const Payload& payload, uint32_t op, double factor) const;
    std::shared_ptr<Job> job_;
    Group* group_;
    // Fingerprints that all senders' trees had where they fit the root's but for their batch sizes, by the structure.
    std::unordered_map<uint64_t, Fingerprint> senders_;
};

struct FailureInfo {
    Failure failure;
    Code code;
    uint64_t match;
};

// Block without the GIL; raises what a signal handler raised.
Failure wait_without_gil(Engine& engine, const std::shared_ptr<Operation>& operation, double timeout);
// Raise the Python exception that is set, unless all is well.
void need(bool ok);
// An object that says why an operation failed.
nanobind::object failure_object(const Failure& failure, const Operation* operation);
// Raise Python signals' exceptions; called while waiting.
bool signals_pending();

}  // namespace corral
