// The oldest values of a tenant, which make room for its puts where its policy says so: which ones
// they are at one authority, which ones of all have to go, and how they do. ADR 18 has the whole.
#pragma once

#include <span>
#include <vector>

#include "node/core.h"

namespace mooncake::node {

// A value that can go.
struct Victim {
  Age age;
  bool in_use = false;  // Somebody reads it.
  Load load;
  size_t from = 0;  // The list that it is of.
};

// Those of one authority, in the order in which they go.
struct VictimList {
  std::vector<Victim> victims;
  bool more = false;  // There are more than these.
};

// In one message.
inline constexpr size_t kVictimsMax = 1024;

// Of those that this node answers for, as many as make room for `missing`. `spared`: the hash of a
// key that is not among them.
VictimList OldestHere(Core& core, TenantAccount& account, const Load& missing, uint64_t spared);

// The oldest of all lists, as many as make room for `missing` and no more. Empty: all together do
// not. Fewer than needed where a list has more: then these go first.
std::vector<Victim> ChooseVictims(std::span<const VictimList> lists, Load missing);

void WriteVictim(const Victim& victim, v1::Aged* out);
VictimList ReadVictims(const v1::QuotaSurveyReply& reply, size_t from);

// What a survey asks for besides the standing: removes what it names, finds what it wants to know.
void ServeVictims(Core& core, TenantAccount& account, const v1::QuotaSurveyRequest& request,
                  v1::QuotaSurveyReply* reply);

}  // namespace mooncake::node
