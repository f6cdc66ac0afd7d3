#include "node/evacuation.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "node/arrivals.h"
#include "node/placed_write.h"
#include "node/query_op.h"

namespace mooncake::node {

namespace {

constexpr size_t kBatchItems = 256;
constexpr uint64_t kBatchBytes = 64u << 20;
constexpr size_t kTargetsMax = 16;
constexpr int kIdlePassesMax = 3;
constexpr uint64_t kUnheardWaitMs = 200;
constexpr uint64_t kSilentWaitMs = 500;
constexpr uint64_t kWritersWaitMs = 20;

class Evacuation {
 public:
  Evacuation(Core& core, const EvacuationOptions& options) : core_(core), options_(options) {}

  EvacuationResult Run() {
    int idle = 0;
    while (idle < kIdlePassesMax) {
      const uint64_t before = result_.moved + freed_;
      const std::vector<ExtentPin> live = Live();
      if (live.empty() && AwaitWriters()) continue;
      if (live.empty()) break;
      if (core_.runtime.NowMs() >= options_.deadline_ms) {
        if (unheard_ == 0 && result_.last_error.code == ErrorCode::kOk) {
          result_.last_error = TransportError("time is up");
        }
        break;
      }
      unheard_ = 0;
      result_.last_error = {};
      MoveAll(live);
      if (unheard_ > 0) result_.last_error = Unheard();
      const bool stuck = result_.moved + freed_ == before;
      if (stuck && AwaitOthers()) continue;
      idle = stuck ? idle + 1 : 0;
    }
    for (const ExtentPin& extent : Live()) {
      ++result_.remaining_objects;
      result_.remaining_bytes += extent->size();
    }
    return std::move(result_);
  }

 private:
  Error Unheard() const {
    return TransportError(
        fmt::format("{} values are from before the metadata service lost its data, and the other "
                    "nodes have yet to ask this one for them",
                    unheard_));
  }

  bool Wait(uint64_t ms) {
    const bool closing = options_.closing && options_.closing();
    if (closing || core_.runtime.Interrupted()) return false;
    const uint64_t now_ms = core_.runtime.NowMs();
    core_.runtime.SleepMs(
        std::min(ms, options_.deadline_ms - std::min(options_.deadline_ms, now_ms)));
    return true;
  }

  // Who has yet to ask for values from before the metadata service lost its data does so on seeing
  // this node; who does not answer may in a while, or is given up. False: there is nothing to wait
  // for. A segment is drained by a node that goes on: it can be done again.
  bool AwaitOthers() {
    if (unheard_ > 0) return Wait(kUnheardWaitMs);
    const bool silent = result_.last_error.code == ErrorCode::kTransport ||
                        core_.view()->OnlySuspectsStore(core_.options.pool);
    return silent && !options_.segment && Wait(kSilentWaitMs);
  }

  // What others are writing here becomes live when they publish it. Nothing new comes to a node
  // that drains; who wrote and died meanwhile is not waited for longer than a stall.
  bool AwaitWriters() {
    const uint64_t now_ms = core_.runtime.NowMs();
    if (writers_until_ms_ == 0) writers_until_ms_ = now_ms + core_.options.stall_timeout_ms;
    if (options_.segment || now_ms >= std::min(writers_until_ms_, options_.deadline_ms))
      return false;
    const auto written = [](const ExtentPin& extent) {
      return extent->state() == ExtentState::kReserved && extent->abandoned_ms() == 0;
    };
    for (size_t shard = 0; shard < ExtentStore::kIndexShards; ++shard) {
      const std::vector<ExtentPin> extents = core_.extents.ShardExtents(shard);
      if (std::any_of(extents.begin(), extents.end(), written)) return Wait(kWritersWaitMs);
    }
    return false;
  }

  std::vector<ExtentPin> Live() const {
    std::vector<ExtentPin> live;
    for (size_t shard = 0; shard < ExtentStore::kIndexShards; ++shard) {
      for (ExtentPin& extent : core_.extents.ShardExtents(shard)) {
        const bool here = !options_.segment || extent->segment_index() == *options_.segment;
        if (here && extent->state() == ExtentState::kLive) live.push_back(std::move(extent));
      }
    }
    return live;
  }

  void MoveAll(const std::vector<ExtentPin>& live) {
    size_t begin = 0;
    while (begin < live.size() && core_.runtime.NowMs() < options_.deadline_ms) {
      size_t end = begin;
      uint64_t bytes = 0;
      while (end < live.size() && end - begin < kBatchItems &&
             (end == begin || bytes + live[end]->size() <= kBatchBytes)) {
        bytes += live[end++]->size();
      }
      MoveBatch({live.data() + begin, end - begin});
      begin = end;
    }
  }

  void MoveBatch(std::span<const ExtentPin> batch) {
    std::vector<KeyRef> refs;
    for (const ExtentPin& extent : batch) refs.push_back(extent->ref());
    const uint64_t era = EraOfAll(*core_.view());
    const auto routes = FindRoutes(core_, refs, options_.deadline_ms);
    era_ = std::max(era, EraOfAll(*core_.view()));
    std::vector<Relocation> relocations(batch.size());
    std::vector<ConstBytes> parts(batch.size());
    std::vector<WriteItem> items(batch.size());
    std::vector<uint32_t> movable[2];  // Without and with a soft pin.
    for (uint32_t i = 0; i < batch.size(); ++i) {
      parts[i] = batch[i]->data();
      items[i] = {refs[i], {&parts[i], 1}, batch[i]->size(), &relocations[i]};
      if (Plan(*batch[i], refs[i], routes[i], &relocations[i])) {
        movable[batch[i]->wants_soft_pin()].push_back(i);
      }
    }
    for (const bool pinned : {false, true}) Move(batch, items, movable[pinned], pinned);
  }

  void Move(std::span<const ExtentPin> batch, std::span<const WriteItem> items,
            const std::vector<uint32_t>& movable, bool pinned) {
    if (movable.empty()) return;
    ReplicateConfig policy;
    policy.with_soft_pin = pinned;
    WriteOptions write;
    write.replicate = &policy;
    write.deadline_ms = options_.deadline_ms;
    std::vector<Status> statuses(batch.size());
    PlacedWrite(core_, items, write, false).Run(movable, &statuses);
    for (uint32_t i : movable) {
      Count(statuses[i], batch[i]->size());
      if (statuses[i].ok()) {
        core_.extents.Retire(*batch[i]);  // The authority says so as well, in a while.
        ++result_.moved;
      } else if (statuses[i].code() != ErrorCode::kConflict ||
                 result_.last_error.code == ErrorCode::kOk) {
        result_.last_error = statuses[i].error();
      }
    }
  }

  void Count(const Status& moved, uint64_t bytes) {
    const char* result = moved.ok()                             ? "ok"
                         : moved.code() == ErrorCode::kConflict ? "conflict"
                                                                : "error";
    core_.metrics
        .GetCounter("rebalance_routes_total", {{"phase", "evacuation"}, {"result", result}})
        .Increment();
    if (!moved.ok()) return;
    core_.metrics.GetCounter("rebalance_bytes_total", {{"phase", "evacuation"}}).Add(bytes);
  }

  // False: nothing to move (the extent is an orphan and has been dealt with, or must wait).
  bool Plan(Extent& extent, const KeyRef& ref, const Result<Route>& route, Relocation* relocation) {
    const Place own = extent.place();
    const bool named = route.ok() && std::find(route->replicas.begin(), route->replicas.end(),
                                               own) != route->replicas.end();
    if (!named) {
      const bool nobodys = route.code() == ErrorCode::kNotFound;
      if (nobodys && IsUnheardOf(core_, extent, era_)) {
        ++unheard_;
      } else if (!nobodys && !route.ok()) {
        result_.last_error = route.error();
      } else if (core_.extents.Retire(extent)) {
        ++freed_;
      }
      return false;
    }
    relocation->version = route->version;
    for (const Place& place : route->replicas) {
      if (place != own) relocation->keep.push_back(place);
    }
    AddTargets(ref, relocation);
    if (!relocation->targets.empty() || !relocation->keep.empty()) return true;
    result_.last_error = NoSpace("no other storage node is active");
    return false;
  }

  void AddTargets(const KeyRef& ref, Relocation* relocation) {
    const ViewPtr view = core_.view();
    const routing::NodeIndex self = view->FindName(core_.membership.self_name());
    const auto add = [&](routing::NodeIndex node) {
      if (node == routing::kNoNode || node == self || !view->node(node).storage) return;
      const std::string name = view->node(node).lease.id.ToString();
      for (const Place& place : relocation->keep) {
        if (core_.names.NameOf(place.owner) == name) return;
      }
      const NodeId& id = view->node(node).lease.id;
      for (const Relocation::Target& known : relocation->targets) {
        if (known.node == id) return;
      }
      relocation->targets.push_back({id, {}});
    };
    if (!options_.prefer.empty()) add(view->FindName(options_.prefer));
    if (options_.segment) relocation->targets.push_back({core_.membership.self(), {}});
    for (routing::NodeIndex node :
         view->PlacementOrder(ref.hash, core_.options.pool, kTargetsMax)) {
      add(node);
    }
    if (!relocation->keep.empty()) PutOtherHostsFirst(*view, relocation);
  }

  // Away from the hosts of the copies that stay; a successor that was asked for stays first.
  void PutOtherHostsFirst(const routing::ClusterView& view, Relocation* relocation) {
    std::set<std::string> taken;
    for (const Place& place : relocation->keep) {
      const routing::NodeIndex owner = view.FindName(core_.names.NameOf(place.owner));
      if (owner != routing::kNoNode) taken.insert(HostOf(core_, view, owner));
    }
    std::vector<Relocation::Target> apart, beside;
    const routing::NodeIndex prefer = view.FindName(options_.prefer);
    for (Relocation::Target& target : relocation->targets) {
      const routing::NodeIndex node = view.Find(target.node);
      const bool asked = node != routing::kNoNode && node == prefer;
      const bool free = taken.count(HostOf(core_, view, node)) == 0;
      (asked || free ? apart : beside).push_back(std::move(target));
    }
    apart.insert(apart.end(), std::make_move_iterator(beside.begin()),
                 std::make_move_iterator(beside.end()));
    relocation->targets = std::move(apart);
  }

  Core& core_;
  const EvacuationOptions& options_;
  EvacuationResult result_;
  uint64_t freed_ = 0;             // Of no key any more, so there was nothing to move.
  uint64_t unheard_ = 0;           // Of the last pass: values that nobody can know of yet.
  uint64_t writers_until_ms_ = 0;  // When there is no waiting for them any more; 0: not yet.
  uint64_t era_ = 0;               // The newest that those can be of who have answered for a batch.
};

}  // namespace

EvacuationResult Evacuate(Core& core, const EvacuationOptions& options) {
  return Evacuation(core, options).Run();
}

}  // namespace mooncake::node
