// A gather whose root says whether everything fits before any byte is written, to all ranks alike.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives.h"

namespace corral {

// What a gather's root tells the others before any byte is written.
struct Verdict {
    uint32_t status = 0;  // 0: go on, 1: sizes differ, 2: element types differ, 3: layouts differ
    int32_t rank = -1;    // the first offender, in the group
    uint64_t actual = 0, expected = 0;
};

// Each member's message to the root, into prepared memory, or into rows of prepared memory: those have no row for the
// root's own.
class Gather final : public Collective {
  public:
    Gather(Group& group, Code code, int32_t root, bool rows);
    void begin(Engine& engine) override;
    void step(Engine& engine) override;
    bool succeeded() const override { return !failure && verdict.status == 0; }

    Spans own;                          // this rank's contribution
    Fingerprint fingerprint;            // of it
    std::vector<Spans> into;            // on the root: where each member's goes
    std::vector<Fingerprint> expected;  // on the root, for each member
    Verdict verdict;

  private:
    bool rows_;
    bool decided_ = false;
    void decide(Engine& engine);
    Verdict judge() const;
};

}  // namespace corral
