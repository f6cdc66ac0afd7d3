// Rounds: how often and when a request is tried again. Items find their authority by the view;
// an answer may say that the view is old, that a slot is being taken over, or nothing at all.
// Rounds turns that evidence into waiting, refreshing or giving up. Not thread-safe: one per
// request.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "node/core.h"

namespace mooncake::node {

// The items of one frame to one authority, all of one scope: a frame names it once for all its
// keys.
struct AuthorityGroup {
  routing::NodeIndex node = routing::kNoNode;
  std::vector<uint32_t> items;  // Indices into the request's items.
  uint64_t sequence = 0;        // Of the change that it carries; 0: a read, or not sent yet.
};

class Rounds {
 public:
  Rounds(Core& core, uint64_t deadline_ms);

  const ViewPtr& view() const { return view_; }
  uint64_t deadline_ms() const { return deadline_ms_; }

  // Groups `items` by the authority and the scope of `refs[item]`, in frames of at most
  // kItemsPerMessageMax items, about kPayloadPerMessageMax of `sizes` (empty: no payload) and no
  // more keys than a message takes. Items whose authority is this node or nobody are noted as to be
  // tried again and appended to `again`.
  std::vector<AuthorityGroup> Group(std::span<const KeyRef> refs, std::span<const uint32_t> items,
                                    std::span<const uint64_t> sizes, std::vector<uint32_t>* again);

  // Evidence of the round that just ended. NoteCode is for kItemRetryLater and
  // kItemWrongAuthority; `revision` is the answering node's.
  void NoteCode(ItemCode code, uint64_t revision);
  void NotePeerFailed(const NodeId& peer, const Error& error);
  // Fills the origin of a change. One that goes again to a peer that did not answer keeps its
  // sequence, so that it is done once.
  void FillChange(AuthorityGroup& group, v1::Origin* origin);
  // What the reply to a group says of its peer. False: nothing of its items, since there is none
  // but `error`, or it is not `whole`; all of them were appended to `again`.
  bool Answered(const AuthorityGroup& group, const Error* error, bool whole,
                std::vector<uint32_t>* again);
  // An item whose peers have answered is to be tried again: it does not give up because of others
  // whose peers have not.
  void NoteOthers() { others_ = true; }
  // There is no peer to ask for routes, or suspect ones only.
  void NoteNobody();
  // All who could take a value are suspect.
  void NoteNoStorage();
  // A route names an owner that the view does not have: perhaps it has just joined.
  void NoteUnknownOwner() { unknown_owner_ = true; }

  // Waits as the evidence asks for and takes the newest view. False: give up; last_error says
  // why.
  bool Again();
  const Error& last_error() const { return last_error_; }

 private:
  void NoteAbsence(uint64_t for_ms, const char* what);
  bool TakeoverIsLate(uint64_t now_ms) const;
  bool FindsNewView();

  static constexpr int kRoundsMax = 10'000;  // Far above what the deadline allows.
  Core& core_;
  const uint64_t deadline_ms_;
  ViewPtr view_;
  int round_ = 0;
  uint64_t wanted_revision_ = 0;
  bool stale_ = false;
  bool unknown_owner_ = false;
  bool looked_ = false;       // For who has joined since, once it was too late to wait.
  bool others_ = false;       // Something waits for else than a peer that failed.
  bool peer_failed_ = false;  // Or there is no peer to ask.
  uint64_t first_failure_ms_ = 0;
  uint64_t suspected_for_ms_ = 0;
  uint64_t absent_for_ms_ = 0;  // How long there has been none; 0: there is one.
  Error last_error_;
  std::map<std::pair<NodeId, std::vector<uint32_t>>, uint64_t> unanswered_;
};

}  // namespace mooncake::node
