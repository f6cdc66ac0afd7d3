// PlacedWrite: copies on chosen owners first, in parallel, then one publish at the authority.
// A copy that fails moves on to the next candidate. What is written but not published is given
// back, unless the publish's outcome is unknown: then the owners' reconcilers ask the authority.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "node/placement.h"
#include "node/put_op.h"
#include "node/quota_reserve.h"
#include "node/rounds.h"

namespace mooncake::node {

class PlacedWrite {
 public:
  PlacedWrite(Core& core, std::span<const WriteItem> items, const WriteOptions& options,
              bool authority_last);
  // Writes the named items and fills their statuses.
  void Run(const std::vector<uint32_t>& indices, std::vector<Status>* statuses);
  // Those that got no copy, other than for want of room: as who was to take one is not in the view,
  // or is not what the view says. After Run.
  const std::vector<uint32_t>& homeless() const { return homeless_; }

 private:
  struct Copies {
    Placement placement;
    size_t next = 0;            // Candidate to try next.
    std::vector<Place> places;  // Written, not yet published.
    ExtentPin own;              // The one among them that is ours.
    uint64_t checksum = 0;
    Error error;              // Why the last candidate took nothing; kOk: none was asked.
    bool unanswered = false;  // A publish may have been done: its places may be in use.
  };
  struct Target {
    routing::NodeIndex node;  // In view_.
    std::string segment;
    std::vector<uint32_t> items;  // Of one scope.
  };

  // Those that the tenant's quota has room for.
  std::vector<uint32_t> ReserveQuota(std::vector<uint32_t> writable, std::vector<Status>* statuses);
  void WriteCopies(const std::vector<uint32_t>& indices);
  // The next candidate of an item, and one more that has been tried. Copies go to different
  // hosts while there are any. `hosts`: of those that have a copy, or are to get one.
  const Candidate& NextCandidate(Copies& copies, std::vector<std::string>* hosts);
  std::vector<std::string> HostsOf(const Copies& copies) const;
  void CountSkipped(const Copies& copies) const;
  bool Holds(const Copies& copies, const Candidate& candidate) const;
  // As many copies as hard preferences allow are where these want them.
  std::vector<uint32_t> PlaceAll(const std::vector<uint32_t>& indices,
                                 std::vector<Status>* statuses);
  void CountPublished(const std::vector<uint32_t>& items, const std::vector<Status>& statuses,
                      uint64_t ns);
  bool HardOnesHold(const Copies& copies) const;
  bool WriteOwn(uint32_t i, const std::string& segment);
  void WriteRemote(const std::vector<Target>& targets);
  std::string WriteMessage(const Target& target);
  void Publish(std::vector<uint32_t> pending, std::vector<Status>* statuses);
  // What was charged for it, or what can be by now. `copies`: that it has.
  ItemCode ChargeHere(uint32_t i, size_t copies, Charge* charge);
  Error PublishError(ItemCode code, uint32_t i) const;
  // True: decided here, the item has its status.
  bool PublishHere(uint32_t i, std::vector<Status>* statuses);
  void PublishRemote(std::vector<AuthorityGroup>& groups, std::vector<Status>* statuses,
                     std::vector<uint32_t>* again);
  // What is published for item i: the copies written, and those kept.
  Route RouteOf(uint32_t i) const;
  void Published(uint32_t i, const v1::PublishReply& reply, int item);
  void GiveBack(uint32_t i);
  void Abandon(uint32_t i);
  // Of what was not published, or not by the last one that was asked.
  void Refuse(uint32_t i);
  bool soft_pin() const;

  Core& core_;
  std::span<const WriteItem> items_;
  const WriteOptions& options_;
  const bool authority_last_;
  Rounds rounds_;       // For publishing; its view is another one with every round.
  const ViewPtr view_;  // What candidates and targets are in.
  std::vector<Copies> copies_;
  std::vector<uint32_t> homeless_;
  std::unique_ptr<QuotaReserve> quota_;  // Where the tenant has one.
};

}  // namespace mooncake::node
