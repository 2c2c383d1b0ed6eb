// What collective operations have in common, as state machines over sends and receives of their group; and the barrier.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "operations.h"

namespace corral {

class Engine;
class Collective;

struct Group {
    uint64_t context = 0;
    std::vector<uint32_t> members;                           // ranks of the job, in the group's order
    uint32_t rank = 0;                                       // this one's place among them
    uint64_t sequence = 0;                                   // of the next collective
    std::map<uint64_t, std::shared_ptr<Collective>> active;  // by sequence: several may be under way
    std::map<uint64_t, Failure> aborted;  // collectives that a peer gave up before this rank called them
    // A call that had completed here when it turned out that the ranks' calls did not fit: the next one says so.
    std::optional<Failure> late;
};

class Collective : public Operation, public std::enable_shared_from_this<Collective> {
  public:
    Collective(Group& group, Code code, int32_t root);
    // Called under the engine's lock.
    virtual void begin(Engine& engine) = 0;
    virtual void step(Engine& engine) = 0;
    // Whether there is something to compute or to copy, of any length. Called under the engine's lock.
    virtual bool has_work() const { return false; }
    // Do a part of it. Called without the lock, by one thread at a time.
    virtual void work() {}
    bool quiet() const override;
    // Whatever must be the same on all ranks becomes a part of the signature.
    void identify(uint64_t value);

    Group& group;
    int32_t root;
    uint64_t sequence = 0;
    uint64_t signature = 0;        // equal on all ranks that call the same
    uint64_t bytes = 0, type = 0;  // of this rank's part, for the log
    uint32_t detail = 0;           // for the log: the reduction + 1
    uint64_t log_index = 0;        // its entry in the rank's log
    std::atomic<bool> working{false};
    std::vector<std::shared_ptr<Send>> sends;
    std::vector<std::shared_ptr<Receive>> receives;

  protected:
    uint32_t size() const { return static_cast<uint32_t>(group.members.size()); }
    bool is_root() const { return static_cast<uint32_t>(root) == group.rank; }
    // Message `step` of this collective to or from a rank of the group; started at once, or prepared for `start`.
    void send(Engine& engine, uint32_t to, uint32_t step, const Spans& spans, const Fingerprint* prefix = nullptr);
    std::shared_ptr<Receive> prepare(uint32_t from, uint32_t step);
    void start(Engine& engine, const std::shared_ptr<Receive>& receive);
    std::shared_ptr<Receive> receive(Engine& engine, uint32_t from, uint32_t step, const Spans& spans);
    std::shared_ptr<Receive> receive_held(Engine& engine, uint32_t from, uint32_t step);
    void finish(Engine& engine, Failure failure = {});
    // What becomes of a message that is held.
    void take(Engine& engine, const std::shared_ptr<Receive>& receive);
    void refuse(Engine& engine, const std::shared_ptr<Receive>& receive);
    bool borrow(Engine& engine, const std::shared_ptr<Receive>& receive, RemoteSpans& out);
    void give_back(Engine& engine, const std::shared_ptr<Receive>& receive, int error);
    // The first failure among the messages, or none.
    Failure problem() const;
    bool all_done() const;
    friend class Engine;
};

class Barrier final : public Collective {
  public:
    explicit Barrier(Group& group);
    void begin(Engine& engine) override;
    void step(Engine& engine) override;

  private:
    uint32_t round_ = 0;
    void exchange(Engine& engine);
};

// A call whose arguments this rank has refused: it has its number, and fails.
class Refused final : public Collective {
  public:
    Refused(Group& group, Code code) : Collective(group, code, -1) {}
    void begin(Engine&) override {}
    void step(Engine&) override {}
};

}  // namespace corral
