// The collectives of a group: buffers in, a request or the outcome out.
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>

#include "group.h"
#include "received.h"
#include "tree.h"

namespace nb = nanobind;

namespace corral {
namespace {

constexpr size_t most_senders = 256;  // trees whose senders' batch sizes are remembered

nb::object conclude(std::unique_ptr<Request> request, nb::handle timeout) {
    if (timeout.is_none()) {
        request->in_background();
        return nb::cast(std::move(request));
    }
    Failure f = request->wait_raw(nb::cast<double>(timeout));
    return f ? failure_object(f, &request->operation()) : nb::none();
}

nb::handle item(nb::handle list, size_t i) { return PyList_GetItem(list.ptr(), static_cast<Py_ssize_t>(i)); }

// Its buffers, or itself if it is one.
void add_any(Payload& payload, nb::handle object) {
    bool many = PyList_Check(object.ptr());
    need(many ? payload.add_all(object.ptr(), Payload::Access::read)
              : payload.add(object.ptr(), Payload::Access::read));
}

void check_list(nb::handle list, size_t size) {
    if (!PyList_Check(list.ptr()) || static_cast<size_t>(PyList_Size(list.ptr())) != size)
        throw nb::value_error("a list with an entry for each rank of the group is needed");
}

// What came from a rank, which from then on belongs to the object returned.
nb::object bytes_of(const Exchange& op, uint32_t rank) {
    auto made = op.made(rank);
    if (made.bytes >= viewed_from)
        for (auto& r : op.receives)
            if (r->made.get() == made.data) return received(std::move(r->made), made.bytes);
    return nb::bytes(made.data, made.bytes);
}

// The entry of a list of all ranks' bytes; a rank's own does not travel.
nb::object own_bytes(nb::handle payload) {
    if (!PyList_Check(payload.ptr())) return nb::steal(PyBytes_FromObject(payload.ptr()));
    Payload parts;
    add_any(parts, payload);
    uint64_t bytes = parts.spans.total();
    auto joined = fresh(bytes);
    {
        nb::gil_scoped_release release;
        parts.spans.read(0, joined.get(), bytes);
    }
    return received(std::move(joined), bytes);
}

}  // namespace

// Start a collective whose arguments `fill` reads. A rank whose arguments make no sense fails the call for all.
template <typename Fill>
std::unique_ptr<Request> GroupHandle::begin(const std::shared_ptr<Collective>& operation, Fill&& fill) {
    auto request = std::make_unique<Request>(job_, operation);
    try {
        fill(*request);
    } catch (...) {
        job_->engine->refuse_call(operation);
        throw;
    }
    job_->engine->start(operation);
    return request;
}

void GroupHandle::refuse(uint32_t label) {
    job_->engine->refuse_call(std::make_shared<Refused>(*group_, static_cast<Code>(label)));
}

nb::object GroupHandle::barrier(nb::handle timeout) {
    auto op = std::make_shared<Barrier>(*group_);
    return conclude(begin(op, [](Request&) {}), timeout);
}

nb::object GroupHandle::gather(nb::handle buffers, nb::handle into, uint32_t root, uint32_t label, nb::handle timeout) {
    member(root);
    auto op = std::make_shared<Gather>(*group_, static_cast<Code>(label), static_cast<int32_t>(root), false);
    auto request = begin(op, [&](Request& r) {
        need(r.payload.add_all(buffers.ptr(), Payload::Access::read));
        op->own = r.payload.spans;
        op->fingerprint = {r.payload.type(), 0};
        op->bytes = op->own.total();
        op->type = r.payload.type();
        if (root != group_->rank) return;
        check_list(into, group_->members.size());
        for (size_t i = 0; i < group_->members.size(); ++i) {
            Payload p;
            need(p.add_all(item(into, i).ptr(), Payload::Access::write));
            op->into.push_back(p.spans);
            op->expected.push_back({p.type(), 0});
            r.others.push_back(std::move(p));
        }
    });
    auto outcome = conclude(std::move(request), timeout);
    return outcome.is_none() && op->verdict.status != 0 ? nb::cast(op->verdict) : outcome;
}

nb::object GroupHandle::broadcast(nb::handle buffers, uint32_t root, uint32_t label, nb::handle timeout) {
    member(root);
    auto op = std::make_shared<Exchange>(*group_, static_cast<Code>(label), static_cast<int32_t>(root), true);
    bool sends = root == group_->rank;
    auto request = begin(op, [&](Request& r) {
        need(r.payload.add_all(buffers.ptr(), sends ? Payload::Access::read : Payload::Access::write));
        op->bytes = r.payload.spans.total();
        op->type = r.payload.type();
        op->identify(op->bytes);
        op->identify(op->type);
        if (!sends) return op->incoming.push_back({root, r.payload.spans, op->type});
        for (uint32_t i = 0; i < group_->members.size(); ++i)
            if (i != root) op->outgoing.push_back({i, r.payload.spans, op->type});
    });
    return conclude(std::move(request), timeout);
}

// A list of buffers for each rank.
void GroupHandle::add_parts(Request& r, Exchange& op, nb::handle parts, bool sends) {
    check_list(parts, group_->members.size());
    for (uint32_t i = 0; i < group_->members.size(); ++i) {
        Payload p;
        need(p.add_all(item(parts, i).ptr(), sends ? Payload::Access::read : Payload::Access::write));
        (sends ? op.outgoing : op.incoming).push_back({i, p.spans, p.type()});
        op.bytes += p.spans.total();
        r.others.push_back(std::move(p));
    }
}

// One buffer to fill, of an equal part for each rank.
void GroupHandle::divide(Request& r, Exchange& op, nb::handle whole) {
    Payload p;
    need(p.add(whole.ptr(), Payload::Access::write));
    auto n = static_cast<uint32_t>(group_->members.size());
    uint64_t part = p.spans.total() / n;
    if (part * n != p.spans.total()) throw nb::value_error("the buffer to fill has no equal part for each rank");
    for (uint32_t i = 0; i < n; ++i) op.incoming.push_back({i, p.spans.part(i * part, part), p.type()});
    r.others.push_back(std::move(p));
}

nb::object GroupHandle::scatter(nb::handle parts, nb::handle into, uint32_t root, uint32_t label, nb::handle timeout) {
    member(root);
    auto op = std::make_shared<Exchange>(*group_, static_cast<Code>(label), static_cast<int32_t>(root), true);
    auto request = begin(op, [&](Request& r) {
        if (root == group_->rank) add_parts(r, *op, parts, true);
        need(r.payload.add_all(into.ptr(), Payload::Access::write));
        op->bytes = r.payload.spans.total();
        op->type = r.payload.type();
        op->incoming.push_back({root, r.payload.spans, op->type});
        if (root == group_->rank) {
            auto& own = op->outgoing[root];
            if (own.type != op->type || own.spans.total() != op->bytes)
                throw nb::value_error("this rank's own part does not fit what it is to be received into");
        }
    });
    return conclude(std::move(request), timeout);
}

nb::object GroupHandle::all_gather(nb::handle buffers, nb::handle into, uint32_t label, nb::handle timeout) {
    auto op = std::make_shared<Exchange>(*group_, static_cast<Code>(label), -1, true);
    auto request = begin(op, [&](Request& r) {
        need(r.payload.add_all(buffers.ptr(), Payload::Access::read));
        if (PyList_Check(into.ptr()))
            add_parts(r, *op, into, false);
        else
            divide(r, *op, into);
        op->bytes = r.payload.spans.total();
        op->type = r.payload.type();
        for (auto& in : op->incoming) {
            op->identify(in.type);
            op->identify(in.spans.total());
        }
        auto& own = op->incoming[group_->rank];
        if (own.type != op->type || own.spans.total() != op->bytes)
            throw nb::value_error("this rank's own part does not fit what it is to be received into");
        for (uint32_t i = 0; i < group_->members.size(); ++i) op->outgoing.push_back({i, r.payload.spans, op->type});
    });
    return conclude(std::move(request), timeout);
}

nb::object GroupHandle::all_to_all(nb::handle parts, nb::handle into, uint32_t label, nb::handle timeout) {
    auto op = std::make_shared<Exchange>(*group_, static_cast<Code>(label), -1, true);
    auto request = begin(op, [&](Request& r) {
        add_parts(r, *op, into, false);
        op->bytes = 0;
        add_parts(r, *op, parts, true);
        auto &in = op->incoming[group_->rank], &out = op->outgoing[group_->rank];
        op->type = out.type;
        if (in.type != out.type || in.spans.total() != out.spans.total())
            throw nb::value_error("this rank's own part does not fit what it is to be received into");
    });
    return conclude(std::move(request), timeout);
}

void GroupHandle::check_reducible(const Payload& payload, uint32_t op, double factor) const {
    for (auto& run : payload.runs)
        if (op > static_cast<uint32_t>(ReduceOp::premul_sum) ||
            !reducible({run.type, static_cast<ReduceOp>(op), 1, factor}))
            throw nb::type_error("the reduction has no meaning for this dtype");
}

// What the elements are, and that they are the same on all ranks.
void GroupHandle::add_runs(Reduce& operation, const Payload& payload, uint32_t op, double factor) {
    operation.detail = op + 1;
    if (static_cast<ReduceOp>(op) == ReduceOp::premul_sum) operation.own_factor = factor;
    operation.bytes = payload.spans.total();
    operation.type = payload.type();
    operation.identify(op);
    for (auto& run : payload.runs) {
        operation.identify(run.type);
        operation.identify(run.bytes);
        Reduction reduction{run.type, static_cast<ReduceOp>(op), static_cast<uint32_t>(group_->members.size()), factor};
        if (run.bytes != 0) operation.runs.push_back({reduction, run.bytes});
    }
}

nb::object GroupHandle::all_reduce(nb::handle buffers, uint32_t op, double factor, uint32_t label, nb::handle timeout) {
    auto operation = std::make_shared<Reduce>(*group_, static_cast<Code>(label), -1, Reduce::Result::everywhere);
    auto request = begin(operation, [&](Request& r) {
        need(r.payload.add_all(buffers.ptr(), Payload::Access::update));
        check_reducible(r.payload, op, factor);
        add_runs(*operation, r.payload, op, factor);
        operation->own = {r.payload.spans};
        operation->into = r.payload.spans;
    });
    return conclude(std::move(request), timeout);
}

nb::object GroupHandle::reduce(nb::handle buffers, uint32_t op, double factor, uint32_t root, uint32_t label,
                               nb::handle timeout) {
    member(root);
    auto operation =
        std::make_shared<Reduce>(*group_, static_cast<Code>(label), static_cast<int32_t>(root), Reduce::Result::root);
    auto request = begin(operation, [&](Request& r) {
        auto access = root == group_->rank ? Payload::Access::update : Payload::Access::read;
        need(r.payload.add_all(buffers.ptr(), access));
        check_reducible(r.payload, op, factor);
        add_runs(*operation, r.payload, op, factor);
        operation->own = {r.payload.spans};
        if (root == group_->rank) operation->into = r.payload.spans;
    });
    return conclude(std::move(request), timeout);
}

nb::object GroupHandle::reduce_scatter(nb::handle parts, nb::handle into, uint32_t op, double factor, uint32_t label,
                                       nb::handle timeout) {
    auto operation = std::make_shared<Reduce>(*group_, static_cast<Code>(label), -1, Reduce::Result::scattered);
    auto request = begin(operation, [&](Request& r) {
        need(r.payload.add_all(into.ptr(), Payload::Access::write));
        check_reducible(r.payload, op, factor);
        check_list(parts, group_->members.size());
        for (uint32_t i = 0; i < group_->members.size(); ++i) {
            Payload p;
            need(p.add_all(item(parts, i).ptr(), Payload::Access::read));
            operation->identify(p.type());
            operation->identify(p.spans.total());
            operation->own.push_back(p.spans);
            if (i == group_->rank && (p.type() != r.payload.type() || p.spans.total() != r.payload.spans.total()))
                throw nb::value_error("this rank's own part does not fit what it is to be received into");
            r.others.push_back(std::move(p));
        }
        // Ranks receive parts of their own, so these do not belong into the signature.
        uint64_t signature = operation->signature;
        add_runs(*operation, r.payload, op, factor);
        operation->signature = signature;
        operation->identify(op);
        operation->into = r.payload.spans;
    });
    return conclude(std::move(request), timeout);
}

nb::object GroupHandle::gather_bytes(nb::handle payload, uint32_t root, uint32_t label, double timeout) {
    member(root);
    auto op = std::make_shared<Exchange>(*group_, static_cast<Code>(label), static_cast<int32_t>(root), false);
    auto request = begin(op, [&](Request& r) {
        if (root == group_->rank) {
            for (uint32_t i = 0; i < group_->members.size(); ++i)
                if (i != root) op->incoming.push_back({i, {}, 0});
            return;
        }
        add_any(r.payload, payload);
        op->outgoing.push_back({root, r.payload.spans, 0});
    });
    Failure f = request->wait_raw(timeout);
    if (f) return failure_object(f, op.get());
    if (root != group_->rank) return nb::none();
    nb::list out;
    for (uint32_t i = 0; i < group_->members.size(); ++i) out.append(i == root ? own_bytes(payload) : bytes_of(*op, i));
    return out;
}

nb::object GroupHandle::broadcast_bytes(nb::handle payload, uint32_t root, uint32_t label, double timeout) {
    member(root);
    auto op = std::make_shared<Exchange>(*group_, static_cast<Code>(label), static_cast<int32_t>(root), false);
    auto request = begin(op, [&](Request& r) {
        if (root != group_->rank) return op->incoming.push_back({root, {}, 0});
        add_any(r.payload, payload);
        for (uint32_t i = 0; i < group_->members.size(); ++i)
            if (i != root) op->outgoing.push_back({i, r.payload.spans, 0});
    });
    Failure f = request->wait_raw(timeout);
    if (f) return failure_object(f, op.get());
    return root == group_->rank ? nb::borrow(payload) : bytes_of(*op, root);
}

nb::object GroupHandle::all_gather_bytes(nb::handle payload, uint32_t label, double timeout) {
    auto op = std::make_shared<Exchange>(*group_, static_cast<Code>(label), -1, false);
    auto request = begin(op, [&](Request& r) {
        add_any(r.payload, payload);
        for (uint32_t i = 0; i < group_->members.size(); ++i) {
            if (i == group_->rank) continue;
            op->incoming.push_back({i, {}, 0});
            op->outgoing.push_back({i, r.payload.spans, 0});
        }
    });
    Failure f = request->wait_raw(timeout);
    if (f) return failure_object(f, op.get());
    nb::list out;
    for (uint32_t i = 0; i < group_->members.size(); ++i)
        out.append(i == group_->rank ? own_bytes(payload) : bytes_of(*op, i));
    return out;
}

nb::object GroupHandle::scatter_bytes(nb::handle payloads, uint32_t root, uint32_t label, double timeout) {
    member(root);
    auto op = std::make_shared<Exchange>(*group_, static_cast<Code>(label), static_cast<int32_t>(root), false);
    auto request = begin(op, [&](Request& r) {
        if (root != group_->rank) return op->incoming.push_back({root, {}, 0});
        check_list(payloads, group_->members.size());
        for (uint32_t i = 0; i < group_->members.size(); ++i) {
            if (i == root) continue;
            Payload p;
            add_any(p, item(payloads, i));
            op->outgoing.push_back({i, p.spans, 0});
            r.others.push_back(std::move(p));
        }
    });
    Failure f = request->wait_raw(timeout);
    if (f) return failure_object(f, op.get());
    return root == group_->rank ? own_bytes(item(payloads, root)) : bytes_of(*op, root);
}

nb::object GroupHandle::all_to_all_bytes(nb::handle payloads, uint32_t label, double timeout) {
    auto op = std::make_shared<Exchange>(*group_, static_cast<Code>(label), -1, false);
    auto request = begin(op, [&](Request& r) {
        check_list(payloads, group_->members.size());
        for (uint32_t i = 0; i < group_->members.size(); ++i) {
            if (i == group_->rank) continue;
            op->incoming.push_back({i, {}, 0});
            Payload p;
            add_any(p, item(payloads, i));
            op->outgoing.push_back({i, p.spans, 0});
            r.others.push_back(std::move(p));
        }
    });
    Failure f = request->wait_raw(timeout);
    if (f) return failure_object(f, op.get());
    nb::list out;
    for (uint32_t i = 0; i < group_->members.size(); ++i)
        out.append(i == group_->rank ? own_bytes(item(payloads, i)) : bytes_of(*op, i));
    return out;
}

nb::object GroupHandle::gather_rows(nb::handle tree, uint32_t root, uint32_t label, double timeout) {
    member(root);
    auto op = std::make_shared<Gather>(*group_, static_cast<Code>(label), static_cast<int32_t>(root), true);
    Rows rows;
    bool fits = false;
    auto request = begin(op, [&](Request& r) {
        // What this rank cannot read or write as it is goes by a fingerprint that fits nobody's: all ranks then learn
        // that they must negotiate, where errors have names.
        Fingerprint unusable{~0ull, group_->rank + 1};
        if (root == group_->rank) {
            auto count = static_cast<int64_t>(group_->members.size()) - 1;
            fits = tree.is_none() ? false : flatten_rows(tree.ptr(), count, r.payload, rows);
            Fingerprint expected = fits ? rows.print.whole() : unusable;
            if (!fits)
                rows.rows.assign(static_cast<size_t>(count), {});
            else if (auto seen = senders_.find(rows.print.structure.low); seen != senders_.end())
                expected = seen->second;
            op->into = std::move(rows.rows);
            op->expected.assign(static_cast<size_t>(count), expected);
        } else {
            fits = flatten(tree.ptr(), r.payload, op->fingerprint);
            if (fits)
                op->own = std::move(r.payload.spans);
            else
                op->fingerprint = unusable;
            op->bytes = op->own.total();
        }
        if (!fits && PyErr_Occurred()) PyErr_Clear();
    });
    Failure f = request->wait_raw(timeout);
    if (f) return failure_object(f, op.get());
    bool done = op->verdict.status == 0;
    if (!done && fits && root == group_->rank) {
        // The senders' batch sizes are learned from them: the next time they need not negotiate.
        const Fingerprint& first = op->receives.front()->arrival.prefix;
        if (first.low == rows.print.structure.low && std::all_of(op->receives.begin(), op->receives.end(),
                                                                 [&](auto& r) { return r->arrival.prefix == first; })) {
            if (senders_.size() >= most_senders) senders_.clear();
            senders_[first.low] = first;
        }
    }
    return nb::bool_(done);
}

}  // namespace corral
