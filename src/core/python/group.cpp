#include "group.h"

#include <cerrno>

#include "tree.h"

namespace nb = nanobind;

namespace corral {
namespace {

const std::function<bool()> interrupted = signals_pending;

int64_t nanoseconds(double seconds) {
    if (seconds < 0 || seconds > 1e9) return -1;
    return static_cast<int64_t>(seconds * 1e9);
}

Failure wait_without_gil(Engine& engine, const std::shared_ptr<Operation>& operation, double timeout) {
    Failure failure;
    {
        nb::gil_scoped_release release;
        failure = engine.wait(operation, nanoseconds(timeout), interrupted);
    }
    // A signal handler may have raised just when the operation ended well.
    if (PyErr_Occurred()) throw nb::python_error();
    return failure;
}

void need(bool ok) {
    if (!ok) throw nb::python_error();
}

nb::object bytes_of(const std::vector<std::byte>& v) {
    return nb::steal(
        PyBytes_FromStringAndSize(reinterpret_cast<const char*>(v.data()), static_cast<Py_ssize_t>(v.size())));
}

}  // namespace

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
            at->payload.settle();
            for (auto& p : at->others) p.settle();
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
    if (operation_->failure) return;
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

std::unique_ptr<Request> GroupHandle::ibarrier() {
    auto op = std::make_shared<Barrier>(*group_);
    job_->engine->start(std::static_pointer_cast<Collective>(op));
    return std::make_unique<Request>(job_, op);
}

nb::object GroupHandle::barrier(double timeout) { return ibarrier()->wait(timeout); }

std::unique_ptr<Request> GroupHandle::igather(nb::handle buffers, nb::handle into, uint32_t root) {
    member(root);
    auto op = std::make_shared<Gather>(*group_, Code::gather, static_cast<int32_t>(root));
    auto request = std::make_unique<Request>(job_, op);
    Payload& payload = request->payload;
    need(payload.add_all(buffers.ptr(), Payload::Access::read));
    op->own = payload.spans;
    op->fingerprint = {payload.type(), 0};
    op->bytes = op->own.total();
    op->type = payload.type();
    if (root == group_->rank) {
        if (!PyList_Check(into.ptr()) || static_cast<size_t>(PyList_Size(into.ptr())) != group_->members.size())
            throw nb::value_error("the root needs a list of buffers for each rank");
        for (size_t r = 0; r < group_->members.size(); ++r) {
            Payload p;
            need(p.add_all(PyList_GetItem(into.ptr(), static_cast<Py_ssize_t>(r)), Payload::Access::write));
            op->into.push_back(p.spans);
            op->expected.push_back({p.type(), 0});
            request->others.push_back(std::move(p));
        }
    }
    job_->engine->start(std::static_pointer_cast<Collective>(op));
    return request;
}

nb::object GroupHandle::gather(nb::handle buffers, nb::handle into, uint32_t root, double timeout) {
    auto request = igather(buffers, into, root);
    Failure f = request->wait_raw(timeout);
    if (f) return failure_object(f, &request->operation());
    auto& op = static_cast<Gather&>(request->operation());
    if (op.verdict.status == 0) return nb::none();
    return nb::cast(op.verdict);
}

nb::object GroupHandle::gather_bytes(nb::handle data, uint32_t root, double timeout) {
    member(root);
    auto op = std::make_shared<Gather>(*group_, Code::gather_bytes, static_cast<int32_t>(root));
    Request request(job_, op);
    need(request.payload.add(data.ptr(), Payload::Access::read));
    op->own = request.payload.spans;
    job_->engine->start(std::static_pointer_cast<Collective>(op));
    Failure f = request.wait_raw(timeout);
    if (f) return failure_object(f, op.get());
    if (root != group_->rank) return nb::none();
    nb::list out;
    for (auto& m : op->made) out.append(bytes_of(m));
    return out;
}

nb::object GroupHandle::broadcast_bytes(nb::handle data, uint32_t root, double timeout) {
    member(root);
    auto op = std::make_shared<Broadcast>(*group_, static_cast<int32_t>(root));
    Request request(job_, op);
    if (root == group_->rank) {
        need(request.payload.add(data.ptr(), Payload::Access::read));
        op->own = request.payload.spans;
    }
    job_->engine->start(std::static_pointer_cast<Collective>(op));
    Failure f = request.wait_raw(timeout);
    if (f) return failure_object(f, op.get());
    return root == group_->rank ? nb::borrow(data) : bytes_of(op->made);
}

nb::object GroupHandle::gather_rows(nb::handle tree, uint32_t root, double timeout) {
    member(root);
    auto op = std::make_shared<Gather>(*group_, Code::gather_rows, static_cast<int32_t>(root));
    Request request(job_, op);
    // What this rank cannot read or write as it is goes by a fingerprint that fits nobody's: all ranks then learn
    // that they must negotiate, where errors have names.
    Fingerprint unusable{~0ull, group_->rank + 1};
    bool fits;
    if (root == group_->rank) {
        Rows rows;
        auto count = static_cast<int64_t>(group_->members.size()) - 1;
        fits = tree.is_none() ? false : flatten_rows(tree.ptr(), count, request.payload, rows);
        if (!fits) {
            rows.rows.assign(static_cast<size_t>(count), {});
            rows.fingerprint = unusable;
        }
        op->into = std::move(rows.rows);
        op->expected.assign(static_cast<size_t>(count), rows.fingerprint);
    } else {
        fits = flatten(tree.ptr(), request.payload, op->fingerprint);
        if (fits)
            op->own = std::move(request.payload.spans);
        else
            op->fingerprint = unusable;
        op->bytes = op->own.total();
    }
    if (!fits && PyErr_Occurred()) PyErr_Clear();
    job_->engine->start(std::static_pointer_cast<Collective>(op));
    Failure f = request.wait_raw(timeout);
    if (f) return failure_object(f, op.get());
    return nb::bool_(op->verdict.status == 0);
}

}  // namespace corral
