// QuotaReserve: room in a tenant's quota for copies that are placed before they are published. Each
// item is charged at its key's authority first, so that a refused put writes and evicts nothing;
// the publish uses the charge up. What is not published is given back at once, or by the authority
// when the put's time is over or this node has left. Not thread-safe: one per request.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "node/put_op.h"
#include "node/quota.h"
#include "node/rounds.h"

namespace mooncake::node {

class QuotaReserve {
 public:
  QuotaReserve(Core& core, std::span<const WriteItem> items, const WriteOptions& options);
  ~QuotaReserve() { GiveBack(); }

  // Charges `copies[i]` copies for each of the items; those that are refused get their status.
  // Returns the others.
  std::vector<uint32_t> Reserve(std::vector<uint32_t> pending, std::span<const uint32_t> copies,
                                std::vector<Status>* statuses);
  // What this node, being the authority, has charged for an item; empty: nothing.
  Charge TakeOwn(uint32_t i);
  // The authority has used the charge up.
  void Published(uint32_t i) { elsewhere_.erase(i); }

 private:
  // True: decided here.
  bool ReserveHere(uint32_t i, uint32_t copies, std::vector<uint32_t>* admitted,
                   std::vector<Status>* statuses);
  v1::QuotaChargeRequest Message(std::span<const uint32_t> items,
                                 std::span<const uint32_t> copies) const;
  void ReserveRemote(std::vector<AuthorityGroup>& groups, std::span<const uint32_t> copies,
                     std::vector<uint32_t>* admitted, std::vector<uint32_t>* again,
                     std::vector<Status>* statuses);
  void GiveBack();

  Core& core_;
  std::span<const WriteItem> items_;
  const WriteOptions& options_;
  Rounds rounds_;
  Admission admission_;
  std::map<uint32_t, Charge> own_;        // By item.
  std::map<uint32_t, NodeId> elsewhere_;  // Who has charged an item that is not published yet.
};

}  // namespace mooncake::node
