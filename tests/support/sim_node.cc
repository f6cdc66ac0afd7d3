#include "support/sim_node.h"

#include <limits>

namespace mooncake::testing {

namespace {

constexpr uint64_t kForever = std::numeric_limits<uint64_t>::max();

class PausableEvent final : public Event {
 public:
  PausableEvent(PausableRuntime& runtime, std::unique_ptr<Event> inner)
      : runtime_(runtime), inner_(std::move(inner)) {}
  void Set() override { inner_->Set(); }
  void Clear() override { inner_->Clear(); }
  bool WaitUntil(uint64_t deadline_ms) override {
    const bool set = inner_->WaitUntil(deadline_ms);
    runtime_.Gate();
    return set;
  }

 private:
  PausableRuntime& runtime_;
  std::unique_ptr<Event> inner_;
};

template <typename Value>
std::vector<Value> Closed(size_t count) {
  std::vector<Value> results;
  for (size_t i = 0; i < count; ++i) results.emplace_back(InvalidState("closed"));
  return results;
}

}  // namespace

void PausableRuntime::SetPaused(bool paused) {
  paused_ = paused;
  if (paused) {
    resumed_->Clear();
  } else {
    resumed_->Set();
  }
}

void PausableRuntime::Gate() {
  while (paused_) resumed_->WaitUntil(kForever);
}

void PausableRuntime::SleepMs(uint64_t ms) {
  inner_.SleepMs(ms);
  Gate();
}

void PausableRuntime::Yield() {
  inner_.Yield();
  Gate();
}

std::unique_ptr<Event> PausableRuntime::NewEvent() {
  return std::make_unique<PausableEvent>(*this, inner_.NewEvent());
}

std::unique_ptr<Thread> PausableRuntime::Spawn(std::string name, std::function<void()> body) {
  return inner_.Spawn(std::move(name), [this, body = std::move(body)] {
    Gate();
    body();
  });
}

void SeverableTransport::CallMany(std::span<Call> calls) {
  if (!severed_) inner_.CallMany(calls);
  runtime_.Gate();
  if (!severed_) return;
  for (Call& call : calls) {
    call.status = TransportError("the process is dead");
    call.failure = CallFailure::kLocal;
  }
}

SimNode::SimNode(Runtime& runtime, transfer::MemoryNetwork& network, MetadataStore& metadata,
                 uint64_t wall_skew_ms)
    : network_(network),
      runtime_(runtime, wall_skew_ms),
      transport_(network, runtime_),
      metadata_(metadata, runtime_) {}

Status SimNode::Start(const node::NodeConfig& config) {
  request_timeout_ms_ = config.options.request_timeout_ms;
  stable_id_ = config.stable_id;
  auto node = node::Node::Start(config, {runtime_, metadata_, transport_, metrics_});
  if (!node) return std::move(node).error();
  name_ = (*node)->name();
  endpoint_ = (*node)->endpoint();
  node_ = *std::move(node);
  return Ok();
}

void SimNode::Close() {
  closing_ = true;
  if (node_ != nullptr) node_->Close();
}

void SimNode::SetPaused(bool paused) {
  if (dead_) return;
  paused_ = paused;
  runtime_.SetPaused(paused);
  network_.SetPaused(endpoint_, paused);
}

void SimNode::Kill() {
  SetPaused(false);
  dead_ = true;
  transport_.Sever();
  metadata_.SetFault(MetadataFault::kDown);
  network_.SetDown(endpoint_, true);
}

std::vector<node::KeyRef> SimNode::Refs(const std::vector<std::string>& keys) {
  const auto scope = core().scopes.Intern({});
  std::vector<node::KeyRef> refs;
  for (const std::string& key : keys) refs.push_back(node::MakeKeyRef(*scope, key));
  return refs;
}

std::vector<Status> SimNode::Put(const std::vector<std::string>& keys,
                                 const std::vector<std::string>& values, bool if_absent,
                                 const ReplicateConfig* replicate) {
  const base::Gate::Pass pass(node_->gate());
  if (!pass) return Closed<Status>(keys.size());
  const std::vector<node::KeyRef> refs = Refs(keys);
  std::vector<ConstBytes> parts;
  for (const std::string& value : values) parts.push_back(BytesOf(value));
  std::vector<node::WriteItem> items;
  for (size_t i = 0; i < keys.size(); ++i) {
    items.push_back({refs[i], std::span(&parts[i], 1), values[i].size()});
  }
  return node::WriteValues(core(), items, {replicate, if_absent, Deadline()});
}

std::vector<Result<std::string>> SimNode::Get(const std::vector<std::string>& keys) {
  const base::Gate::Pass pass(node_->gate());
  if (!pass) return Closed<Result<std::string>>(keys.size());
  std::vector<node::ReadItem> items;
  for (const node::KeyRef& ref : Refs(keys)) items.push_back({.ref = ref});
  std::vector<std::string> values(keys.size());
  auto allocate = [&](size_t item, uint64_t size) -> std::optional<MutableBytes> {
    values[item].assign(size, '\0');
    return MutableBytes(reinterpret_cast<std::byte*>(values[item].data()), size);
  };
  const auto sizes = node::ReadValues(core(), {items, false, allocate, Deadline()});
  std::vector<Result<std::string>> results;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (sizes[i]) {
      // A wrong size shows as a value that nobody has put.
      values[i].resize(*sizes[i]);
      results.emplace_back(std::move(values[i]));
    } else {
      results.emplace_back(sizes[i].error());
    }
  }
  return results;
}

std::vector<Result<Existence>> SimNode::Exist(const std::vector<std::string>& keys) {
  const base::Gate::Pass pass(node_->gate());
  if (!pass) return Closed<Result<Existence>>(keys.size());
  std::vector<Result<Existence>> results;
  for (const Status& status : node::ExistKeys(core(), Refs(keys), Deadline())) {
    if (status.ok()) {
      results.emplace_back(Existence::kPresent);
    } else if (status.code() == ErrorCode::kNotFound) {
      results.emplace_back(Existence::kMissing);
    } else {
      results.emplace_back(status.error());
    }
  }
  return results;
}

std::vector<Status> SimNode::Remove(const std::vector<std::string>& keys) {
  const base::Gate::Pass pass(node_->gate());
  if (!pass) return Closed<Status>(keys.size());
  return node::RemoveKeys(core(), Refs(keys), Deadline());
}

Result<uint64_t> SimNode::Evacuate() {
  const base::Gate::Pass pass(node_->gate());
  if (!pass) return InvalidState("closed");
  MC_TRY(const node::EvacuationResult moved, node_->EvacuateAll({}, Deadline()));
  return moved.remaining_objects;
}

std::vector<std::string> SimNode::RanksOf(const std::string& key) {
  const node::ViewPtr view = core().view();
  std::vector<std::string> names;
  for (routing::NodeIndex rank : view->RanksOf(Refs({key})[0].hash)) {
    names.push_back(view->node(rank).lease.id.ToString());
  }
  return names;
}

}  // namespace mooncake::testing
