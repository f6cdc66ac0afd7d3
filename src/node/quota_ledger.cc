#include "node/quota_ledger.h"

#include <algorithm>

namespace mooncake::node {

namespace {

// Of what is left, for each member: so that not every put asks, and that others get some as well.
constexpr uint64_t kSpareDivisor = 4;

Load SpareOf(const Load& rest, size_t members) {
  const uint64_t parts = kSpareDivisor * std::max<size_t>(1, members);
  return {rest.bytes / parts, rest.objects / parts};
}

}  // namespace

routing::Slot LedgerSlot(const routing::Slots& slots, const std::string& tenant) {
  return slots.Of(routing::KeyHash(routing::ScopeSeed({tenant, {}, "tenant-quota"}), "ledger"));
}

void QuotaLedger::Note(Book& book, const Standing& standing, uint64_t revision) {
  Member& member = book.members[standing.node];
  // While it asks for more, what it was granted meanwhile is not in what it says.
  if (standing.attempt < member.attempt) {
    member.revision = std::max(member.revision, revision);
    return;
  }
  // Of two surveys by one view the later one, which has less, may have come first: more is safe.
  member = {revision, standing.attempt, standing.granted};
}

bool QuotaLedger::Knows(const Book& book, const Question& question) {
  return std::all_of(question.members.begin(), question.members.end(), [&](const auto& name) {
    const auto found = book.members.find(name);
    return found != book.members.end() && found->second.revision == question.revision;
  });
}

QuotaLedger::Answer QuotaLedger::Decide(const Question& question) {
  base::MutexLock lock(mu_);
  if (books_.size() >= kBooksMax && !books_.contains(question.tenant)) books_.clear();
  Book& book = books_[question.tenant];
  {
    const auto asker = book.members.find(question.asker.node);
    if (asker != book.members.end() && question.asker.attempt <= asker->second.attempt) {
      return {Verdict::kStale, {}};
    }
  }
  Note(book, question.asker, question.revision);
  for (const Standing& other : question.others) {
    if (!question.members.contains(other.node)) continue;
    // It is by another view, or between two: what it counts may be counted elsewhere as well.
    if (other.revision != question.revision) return {Verdict::kSurveyFirst, {}};
    Note(book, other, question.revision);
  }
  if (question.surveyed) {
    // One that is silent has what it had when it was last heard of. Its keys move to others soon.
    for (const std::string& name : question.members) {
      const auto found = book.members.find(name);
      if (found == book.members.end()) return {Verdict::kSilent, {}};
      found->second.revision = question.revision;
    }
  }
  if (!Knows(book, question)) return {Verdict::kSurveyFirst, {}};
  std::erase_if(book.members,
                [&](const auto& entry) { return !question.members.contains(entry.first); });
  Load total;
  for (const auto& [name, member] : book.members) total = total.Plus(member.granted);
  const Load rest = question.limit.Minus(total);
  const bool fits = question.want.GrowthWithin(rest);
  if (!fits && !question.surveyed) return {Verdict::kSurveyFirst, {}};
  Load amount = question.want.AtMost(rest);
  if (fits) amount = amount.Plus(SpareOf(rest.Minus(amount), book.members.size()));
  Member& member = book.members[question.asker.node];
  member.granted = member.granted.Plus(amount);
  return {Verdict::kGranted, amount};
}

}  // namespace mooncake::node
