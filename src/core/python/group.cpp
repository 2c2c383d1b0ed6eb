#include "group.h"

#include "received.h"

namespace nb = nanobind;

namespace corral {
namespace {

int64_t nanoseconds(double seconds) {
    if (seconds < 0 || seconds > 1e9) return -1;
    return static_cast<int64_t>(seconds * 1e9);
}

}  // namespace

Failure wait_without_gil(Engine& engine, const std::shared_ptr<Operation>& operation, double timeout) {
    Failure failure;
    {
        nb::gil_scoped_release release;
        failure = engine.wait(operation, nanoseconds(timeout), signals_pending);
    }
    // A signal handler may have raised just when the operation ended well.
    if (PyErr_Occurred()) throw nb::python_error();
    return failure;
}

void need(bool ok) {
    if (!ok) throw nb::python_error();
}

bool signals_pending() {
    nb::gil_scoped_acquire acquire;
    return PyErr_CheckSignals() != 0;
}

nb::object failure_object(const Failure& f, const Operation* op) {
    return nb::cast(FailureInfo{f, op ? op->code : Code::none, op ? op->match : 0});
}

Job::~Job() {
    // What is still under way may write into memory that goes with this object: such memory is kept for ever.
    sweep();
    for (auto& o : orphans) new Orphan(std::move(o));
    nb::gil_scoped_release release;
    engine.reset();
}

void Job::sweep() {
    for (auto at = orphans.begin(); at != orphans.end();) {
        if (at->operation->quiet()) {
            if (at->operation->succeeded()) {
                at->payload.settle();
                for (auto& p : at->others) p.settle();
            }
            at = orphans.erase(at);
        } else {
            ++at;
        }
    }
}

Request::~Request() {
    if (!operation_ || !job_) return;
    if (!operation_->quiet())
        job_->orphans.push_back({std::move(operation_), std::move(payload), std::move(others)});
    else
        settle();
    if (!job_->orphans.empty()) job_->sweep();
}

void Request::settle() {
    if (!operation_->succeeded()) return;
    payload.settle();
    for (auto& p : others) p.settle();
}

Failure Request::wait_raw(double timeout) {
    Failure f = operation_->done.load(std::memory_order_acquire) ? operation_->failure
                                                                 : wait_without_gil(*job_->engine, operation_, timeout);
    if (operation_->done.load(std::memory_order_acquire)) settle();
    return f;
}

nb::object Request::wait(double timeout) {
    Failure f = wait_raw(timeout);
    return f ? failure_object(f, operation_.get()) : nb::none();
}

bool Request::done() {
    bool done = operation_->done.load(std::memory_order_acquire);
    if (!done) {
        nb::gil_scoped_release release;
        done = job_->engine->poll(operation_);
    }
    if (done) settle();
    return done;
}

void Request::linger(double seconds) {
    nb::gil_scoped_release release;
    job_->engine->linger(operation_, nanoseconds(seconds));
}

nb::object Request::failure() {
    if (!done() || !operation_->failure) return nb::none();
    return failure_object(operation_->failure, operation_.get());
}

GroupHandle::GroupHandle(std::shared_ptr<Job> job, uint64_t context, std::vector<uint32_t> members)
    : job_(std::move(job)) {
    for (uint32_t m : members)
        if (m >= job_->engine->size()) throw nb::value_error("a member is not a rank of the job");
    group_ = job_->engine->add_group(context, std::move(members));
    if (!group_) throw nb::value_error("a group of this name exists");
}

uint32_t GroupHandle::member(int64_t rank) const {
    if (rank < 0 || rank >= static_cast<int64_t>(group_->members.size()))
        throw nb::value_error("no such rank in the group");
    return group_->members[static_cast<size_t>(rank)];
}

int32_t GroupHandle::rank_of(int32_t world) const {
    for (size_t i = 0; i < group_->members.size(); ++i)
        if (static_cast<int32_t>(group_->members[i]) == world) return static_cast<int32_t>(i);
    return -1;
}

nb::object GroupHandle::send(nb::handle buffers, uint32_t to, uint64_t tag, double timeout) {
    uint32_t peer = member(to);
    {
        Payload p;
        need(p.add_all(buffers.ptr(), Payload::Access::read));
        if (job_->engine->try_send(peer, group_->context, tag, p.type(), p.spans)) return nb::none();
    }
    return start(true, buffers, static_cast<int32_t>(to), tag)->wait(timeout);
}

nb::object GroupHandle::recv(nb::handle buffers, int32_t from, uint64_t tag, double timeout) {
    auto request = start(false, buffers, from, tag);
    Failure f = request->wait_raw(timeout);
    if (f) return failure_object(f, &request->operation());
    return nb::int_(rank_of(request->source()));
}

std::unique_ptr<Request> GroupHandle::start(bool sends, nb::handle buffers, int32_t peer, uint64_t tag) {
    Payload payload;
    need(payload.add_all(buffers.ptr(), sends ? Payload::Access::read : Payload::Access::write));
    int32_t world = !sends && peer < 0 ? any_source : static_cast<int32_t>(member(peer));
    std::unique_ptr<Request> request;
    if (sends) {
        auto op = std::make_shared<Send>();
        op->code = Code::send;
        op->context = group_->context;
        op->match = tag & ~collective_bit;
        op->peer = world;
        op->message.signature = payload.type();
        op->spans = std::move(payload.spans);
        job_->engine->start(op);
        request = std::make_unique<Request>(job_, op);
    } else {
        auto op = std::make_shared<Receive>();
        op->code = Code::recv;
        op->context = group_->context;
        op->match = tag & ~collective_bit;
        op->peer = world;
        op->signature = payload.type();
        op->check_type = true;
        op->spans = std::move(payload.spans);
        job_->engine->start(op);
        request = std::make_unique<Request>(job_, op);
    }
    request->payload = std::move(payload);
    if (!job_->orphans.empty()) job_->sweep();
    return request;
}

nb::object GroupHandle::recv_bytes(int32_t from, uint64_t tag, double timeout) {
    auto op = std::make_shared<Receive>();
    op->code = Code::recv;
    op->context = group_->context;
    op->match = tag & ~collective_bit;
    op->peer = from < 0 ? any_source : static_cast<int32_t>(member(from));
    op->make = true;
    job_->engine->start(op);
    Request request(job_, op);
    Failure f = request.wait_raw(timeout);
    if (f) return failure_object(f, op.get());
    return nb::make_tuple(rank_of(op->peer), received(std::move(op->made), op->spans.total()));
}

nb::object GroupHandle::late() {
    auto failure = job_->engine->take_late(*group_);
    if (!failure) return nb::none();
    return nb::cast(FailureInfo{*failure, Code::none, 0});
}

}  // namespace corral
