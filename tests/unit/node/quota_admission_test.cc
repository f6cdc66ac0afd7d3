// Admission where it meets others: policies, puts and views that come in between.
#include <google/protobuf/arena.h>
#include <gtest/gtest.h>

#include <functional>
#include <new>

#include "unit/node/quotas.h"

namespace mooncake::node {
namespace {

// Called whenever the reply of a request needs more memory: between two of its items.
std::function<void()>& BetweenItems() {
  static std::function<void()> hook;
  return hook;
}

void* NewBlock(size_t size) {
  if (BetweenItems()) BetweenItems()();
  return ::operator new(size);
}

v1::QuotaChargeRequest ChargeOf(TestNode& writer, const std::vector<std::string>& keys) {
  v1::QuotaChargeRequest request;
  writer.core().peers.FillOrigin(true, request.mutable_origin());
  WriteScope({}, request.mutable_scope());
  request.set_limit_ms(5'000);
  for (const std::string& key : keys) {
    AddKey(key, request.mutable_keys());
    request.add_value_sizes(kSize);
    request.add_copies(1);
  }
  return request;
}

TEST(QuotaAdmission, TheFirstQuotaOfATenantMayComeInTheMiddleOfARequest) {
  Simulated(50, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    const v1::QuotaChargeRequest request = ChargeOf(a, Keys(1'000));
    google::protobuf::ArenaOptions options;
    options.start_block_size = 256;
    options.block_alloc = NewBlock;
    options.block_dealloc = [](void* block, size_t) { ::operator delete(block); };
    google::protobuf::Arena arena(options);
    auto* reply = google::protobuf::Arena::CreateMessage<v1::QuotaChargeReply>(&arena);
    metadata::KnownPolicy policy;
    policy.record.policy.max_bytes = 2'000 * kSize;
    int installed_at = 0;
    BetweenItems() = [&] {
      if (reply->codes_size() == 0 || installed_at != 0) return;
      installed_at = reply->codes_size();
      a.core().meter.Install({{kTenant, policy}});
    };
    bool valid = true;
    EXPECT_TRUE(ServeQuotaCharge(a.core(), request, true, reply, &valid));
    BetweenItems() = {};
    EXPECT_TRUE(valid);
    ASSERT_GT(installed_at, 0);
    ASSERT_EQ(reply->codes_size(), 1'000);
    for (const ItemCode code : reply->codes()) EXPECT_EQ(code, kItemOk);
    // The item whose code was being added had been admitted before.
    EXPECT_EQ(Total({&a}).pending.objects, uint64_t{999} - static_cast<size_t>(installed_at));
  });
}

// Of values of kSize, at their authority.
ItemCode AdmitOne(TestNode& node, const std::string& key, Admission& admission, Charge* charge) {
  return Admit(node.core(), {node.Ref(key), kSize, 1, false}, admission, charge);
}

TEST(QuotaAdmission, OfABatchDoesNotEndWithWhatAnotherPutUsedUpMeanwhile) {
  Simulated(51, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    SetQuota(a, 100 * kSize);
    Admission batch{.may_block = true, .patient = true, .deadline_ms = a.Deadline()};
    batch.ahead = {20 * kSize, 20};
    const auto keys = Keys(20);
    std::vector<Charge> charges(keys.size());
    ASSERT_EQ(AdmitOne(a, keys[0], batch, &charges[0]), kItemOk);
    // Another put takes all that was granted, while the first item is copied.
    TenantAccount* account = a.core().meter.FindTenant(kTenant);
    const auto granted = account->amounts();
    Charge other;
    ASSERT_TRUE(account->TryCharge(granted.granted.Minus(granted.pending),
                                   cluster.runtime().NowMs(), &other));
    ASSERT_LE(account->amounts().pending.bytes, 80 * kSize) << "the test leaves room for the batch";
    for (size_t i = 1; i < keys.size(); ++i) {
      EXPECT_EQ(AdmitOne(a, keys[i], batch, &charges[i]), kItemOk) << i;
    }
    EXPECT_LE(account->amounts().granted.bytes, 100 * kSize);
    // No more than there is.
    Charge too_much;
    const Load rest = Load{100 * kSize, 0}.Minus(account->amounts().pending);
    for (uint64_t i = 0; i < rest.bytes / kSize; ++i) {
      Charge& charge = charges.emplace_back();
      EXPECT_EQ(AdmitOne(a, "more-" + std::to_string(i), batch, &charge), kItemOk);
    }
    EXPECT_EQ(AdmitOne(a, "last", batch, &too_much), CodeOf(ErrorCode::kConflict));
  });
}

TEST(QuotaAdmission, AsksLessAndLessOftenWhileViewsMove) {
  Simulated(52, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    SetQuota(a, 100 * kSize);
    const uint64_t begun = b.core().meter.BeginCount();  // As while it applies a view.
    a.transport.Take();
    Admission put{.may_block = true, .patient = true, .deadline_ms = a.Deadline()};
    Charge charge;
    const uint64_t started_ms = cluster.runtime().NowMs();
    EXPECT_EQ(AdmitOne(a, "k", put, &charge), CodeOf(ErrorCode::kTransport));
    EXPECT_GE(cluster.runtime().NowMs() - started_ms, 2'500u);
    EXPECT_LT(a.transport.Take().messages, 300u) << "three for each try, at most";
    b.core().meter.EndCount(begun, b.core().view()->revision());
    EXPECT_EQ(
        AdmitOne(a, "k", put = {.may_block = true, .patient = true, .deadline_ms = a.Deadline()},
                 &charge),
        kItemOk);
  });
}

TEST(QuotaAdmission, HoldsNoThreadOfThoseThatServePeersForLong) {
  Simulated(53, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    SetQuota(a, 100 * kSize);
    TenantAccount* account = a.core().meter.FindTenant(kTenant);
    ASSERT_TRUE(account->BeginAsking());  // Somebody asks, and is not answered.
    const v1::QuotaChargeRequest request = ChargeOf(a, Keys(100));
    v1::QuotaChargeReply reply;
    bool valid = true;
    const uint64_t started_ms = cluster.runtime().NowMs();
    EXPECT_TRUE(ServeQuotaCharge(a.core(), request, true, &reply, &valid));
    EXPECT_LT(cluster.runtime().NowMs() - started_ms, 500u) << "for all the items together";
    ASSERT_EQ(reply.codes_size(), 100);
    for (const ItemCode code : reply.codes()) EXPECT_EQ(code, kItemRetryLater);
    account->EndAsking();
    reply.Clear();
    EXPECT_TRUE(ServeQuotaCharge(a.core(), request, true, &reply, &valid));
    for (const ItemCode code : reply.codes()) EXPECT_EQ(code, kItemOk);
  });
}

}  // namespace
}  // namespace mooncake::node
