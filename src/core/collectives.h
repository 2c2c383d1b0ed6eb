// Collective operations, as state machines over sends and receives of their group.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
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
};

class Collective : public Operation, public std::enable_shared_from_this<Collective> {
  public:
    Collective(Group& group, Code code, int32_t root);
    // Called under the engine's lock.
    virtual void begin(Engine& engine) = 0;
    virtual void step(Engine& engine) = 0;
    bool quiet() const override;

    Group& group;
    int32_t root;
    uint64_t sequence = 0;
    uint64_t signature = 0;  // equal on all ranks that call the same
    uint64_t bytes = 0, type = 0;
    uint64_t log_index = 0;  // its entry in the rank's log
    std::vector<std::shared_ptr<Send>> sends;
    std::vector<std::shared_ptr<Receive>> receives;

  protected:
    // Message `step` of this collective to or from a rank of the group; started at once.
    void send(Engine& engine, uint32_t to, uint32_t step, const Spans& spans, const Fingerprint* prefix = nullptr);
    std::shared_ptr<Receive> receive(Engine& engine, uint32_t from, uint32_t step, const Spans& spans, bool hold);
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

// What a gather's root tells the others before any byte is written.
struct Verdict {
    uint32_t status = 0;  // 0: go on, 1: sizes differ, 2: element types differ, 3: layouts differ
    int32_t rank = -1;    // the first offender, in the group
    uint64_t actual = 0, expected = 0;
};

// Each member's message to the root: into prepared memory, rows of prepared memory, or memory made on arrival.
class Gather final : public Collective {
  public:
    Gather(Group& group, Code code, int32_t root);
    void begin(Engine& engine) override;
    void step(Engine& engine) override;

    Spans own;                                 // this rank's contribution
    Fingerprint fingerprint;                   // of it
    std::vector<Spans> into;                   // on the root: where each member's goes
    std::vector<Fingerprint> expected;         // on the root, for each member
    std::vector<std::vector<std::byte>> made;  // on the root of a gather of unknown sizes
    Verdict verdict;

  private:
    bool decided_ = false;
    void decide(Engine& engine);
};

// The root's bytes to every member, which need not know how many.
class Broadcast final : public Collective {
  public:
    Broadcast(Group& group, int32_t root);
    void begin(Engine& engine) override;
    void step(Engine& engine) override;

    Spans own;
    std::vector<std::byte> made;

  private:
    bool taken_ = false;
};

}  // namespace corral
