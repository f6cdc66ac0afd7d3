#include "support/sim_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "allocator/extent_allocator.h"

namespace mooncake::testing {

namespace {

constexpr size_t kProblemsMax = 40;

class Accounting {
 public:
  explicit Accounting(const std::vector<SimNode*>& nodes) : nodes_(nodes) {
    for (SimNode* node : nodes) by_name_[node->name()] = node;
  }

  std::vector<std::string> Run() {
    for (SimNode* node : nodes_) CheckView(*node);
    CheckSlots();
    for (SimNode* node : nodes_) CheckExtents(*node);
    for (SimNode* node : nodes_) CheckRoutes(*node);
    if (problems_.size() > kProblemsMax) problems_.resize(kProblemsMax);
    return std::move(problems_);
  }

 private:
  void CheckView(SimNode& node) {
    const node::ViewPtr view = node.core().view();
    std::vector<std::string> names;
    for (const routing::ViewNode& member : view->nodes()) {
      names.push_back(member.lease.id.ToString());
      if (!member.authority || !member.storage) {
        Problem("{} sees {} not as an active member", node.name(), names.back());
      }
    }
    std::vector<std::string> wanted;
    for (const auto& [name, member] : by_name_) wanted.push_back(name);
    std::sort(names.begin(), names.end());
    if (names != wanted) {
      Problem("{} sees the members {}", node.name(), fmt::join(names, ", "));
    }
  }

  void CheckSlots() {
    if (nodes_.empty()) return;
    const node::ViewPtr view = nodes_[0]->core().view();
    std::map<std::string, int> wrong;
    for (routing::Slot slot = 0; slot < view->slots().count(); ++slot) {
      const auto ranks = view->Ranks(slot);
      const std::string first = ranks.empty() ? "" : view->node(ranks[0]).lease.id.ToString();
      for (SimNode* node : nodes_) {
        const bool serves = node->core().routes.Serves(slot);
        if (serves != (node->name() == first)) {
          ++wrong[node->name() +
                  (serves ? " serves slots of others" : " does not serve its slots")];
        }
      }
    }
    for (const auto& [text, count] : wrong) Problem("{}: {}", text, count);
  }

  void CheckExtents(SimNode& node) {
    std::map<uint64_t, const node::Extent*> by_offset;
    std::vector<node::ExtentPin> pins;
    uint64_t bytes = 0;
    for (size_t shard = 0; shard < node::ExtentStore::kIndexShards; ++shard) {
      for (node::ExtentPin& pin : node.core().extents.ShardExtents(shard)) {
        by_offset[pin->place().offset] = pin.get();
        bytes += allocator::ExtentAllocator::RoundUp(pin->size());
        pins.push_back(std::move(pin));
      }
    }
    const auto [used, capacity] = node.core().extents.Usage();
    if (used != bytes || pins.size() != by_offset.size()) {
      Problem("{}: {} bytes used, {} bytes in {} extents at {} places", node.name(), used, bytes,
              pins.size(), by_offset.size());
    }
    uint64_t free_from = 0;
    for (const auto& [offset, extent] : by_offset) {
      if (offset < free_from) Problem("{}: extents overlap at {}", node.name(), offset);
      free_from = offset + allocator::ExtentAllocator::RoundUp(extent->size());
      CheckExtent(node, *extent);
    }
    if (free_from > capacity) Problem("{}: an extent ends beyond the segment", node.name());
  }

  void CheckExtent(SimNode& node, const node::Extent& extent) {
    const std::string what = fmt::format("{}: extent of {} at {}, version {}", node.name(),
                                         extent.ref().key, extent.place().offset, extent.version());
    if (extent.state() != node::ExtentState::kLive) return Problem("{} is not live", what);
    SimNode* authority = AuthorityOf(node, node.core().routes.SlotOf(extent.ref()));
    if (authority == nullptr) return Problem("{} has no authority", what);
    const node::KeyRef ref = Translate(node, extent.ref(), *authority);
    node::Place place = extent.place();
    if (authority != &node) place.owner = *authority->core().names.IndexOf(node.name());
    node::Version version = 0;
    const node::ItemCode code = authority->core().routes.Check(ref, place, false, &version);
    if (code != node::kItemOk) {
      return Problem("{} is not named by {} (code {})", what, authority->name(), code);
    }
    if (version != extent.version()) Problem("{} has the version {} there", what, version);
  }

  void CheckRoutes(SimNode& node) {
    for (size_t shard = 0; shard < node::RouteTable::kShards; ++shard) {
      const auto routes = node.core().routes.Export(shard, [&](routing::Slot) { return true; });
      for (const node::KeyedRoute& keyed : routes) {
        if (node.core().routes.Serves(node.core().routes.SlotOf(keyed.ref)))
          CheckRoute(node, keyed);
      }
    }
  }

  void CheckRoute(SimNode& node, const node::KeyedRoute& keyed) {
    const std::string what =
        fmt::format("{}: route of {}, version {}", node.name(), keyed.key, keyed.route.version);
    if (keyed.route.replicas.empty()) Problem("{} has no replica", what);
    for (const node::Place& place : keyed.route.replicas) {
      const std::string owner_name = node.core().names.NameOf(place.owner);
      const auto owner = by_name_.find(owner_name);
      if (owner == by_name_.end()) {
        Problem("{} names {}, which is gone", what, owner_name);
        continue;
      }
      const node::ExtentPin pin =
          owner->second->core().extents.Find(place.segment, place.offset, place.generation);
      const bool right = pin && pin->state() == node::ExtentState::kLive &&
                         pin->ref().key == keyed.key && pin->size() == keyed.route.size &&
                         pin->checksum() == keyed.route.checksum;
      if (!right) Problem("{} names an extent of {} that is not there", what, owner_name);
    }
  }

  SimNode* AuthorityOf(SimNode& node, routing::Slot slot) {
    const node::ViewPtr view = node.core().view();
    const auto ranks = view->Ranks(slot);
    if (ranks.empty()) return nullptr;
    const auto found = by_name_.find(view->node(ranks[0]).lease.id.ToString());
    return found == by_name_.end() ? nullptr : found->second;
  }

  // Each node has its own numbers for scopes.
  static node::KeyRef Translate(SimNode& from, node::KeyRef ref, SimNode& to) {
    ref.scope = to.core().scopes.Intern(from.core().scopes.ScopeOf(ref.scope))->index;
    return ref;
  }

  template <typename... Args>
  void Problem(fmt::format_string<Args...> text, Args&&... args) {
    problems_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  const std::vector<SimNode*>& nodes_;
  std::map<std::string, SimNode*> by_name_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> CheckAccounting(const std::vector<SimNode*>& nodes) {
  return Accounting(nodes).Run();
}

}  // namespace mooncake::testing
