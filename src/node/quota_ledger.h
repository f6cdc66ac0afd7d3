// QuotaLedger: what the nodes may use of each tenant's quota, and that it is no more than the quota
// together. Kept by the node that answers for the slot of the tenant's ledger (LedgerSlot).
//
// It lives in memory only. A ledger that is new, or whose view is, knows nothing: whoever asks it
// for more first gets to know how every authority of the view stands (a survey) and tells it. So a
// ledger that dies or moves needs no hand-over, and what it had granted is not granted again.
//
// Thread-safe. Calls no port.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "node/tenant_meter.h"

namespace mooncake::node {

// The slot whose authority keeps the tenant's ledger.
routing::Slot LedgerSlot(const routing::Slots& slots, const std::string& tenant);

class QuotaLedger {
 public:
  struct Question {
    std::string tenant;
    Load limit;
    uint64_t revision = 0;          // Of the ledger's view.
    std::set<std::string> members;  // The authorities of that view that know of quotas.
    Standing asker;                 // Its attempt is that of this very question.
    Load want;
    bool surveyed = false;  // All members were asked; these answered:
    std::vector<Standing> others;
  };
  enum class Verdict : uint8_t {
    kGranted,      // As much of `want` as there is; perhaps nothing. Perhaps more than that.
    kSurveyFirst,  // Ask all members, and then again.
    kSilent,       // A member of which nothing is known has not answered.
    kStale,        // A later question of the asker has been answered: this one was late.
  };
  struct Answer {
    Verdict verdict = Verdict::kStale;
    Load amount;
  };
  Answer Decide(const Question& question);

 private:
  struct Member {
    uint64_t revision = 0;  // As of which it was heard of.
    uint64_t attempt = 0;
    Load granted;
  };
  struct Book {
    std::map<std::string, Member> members;
  };
  static void Note(Book& book, const Standing& standing, uint64_t revision);
  static bool Knows(const Book& book, const Question& question);

  static constexpr size_t kBooksMax = 65'536;
  base::Mutex mu_;
  std::map<std::string, Book> books_ MC_GUARDED_BY(mu_);
};

}  // namespace mooncake::node
