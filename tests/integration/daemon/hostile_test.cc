// What is no client at all: the daemon refuses it, counts it, and goes on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/dummy/call_pool.h"
#include "client/dummy/dummy_get.h"
#include "raw_client.h"
#include "runtime/real_runtime.h"

namespace mooncake::daemon {
namespace {

class HostileTest : public RawClientTest {
 protected:
  grpc::Status PutFrom(const v1::Session& session, uint64_t region, uint64_t offset, uint64_t size,
                       v1::CodesReply* reply) {
    reinterpret_cast<uint32_t*>(control_->bytes().data())[3] = 9;
    return SendPut(session, region, offset, size, false, reply);
  }

  grpc::Status SendPut(const v1::Session& session, uint64_t region, uint64_t offset, uint64_t size,
                       bool if_absent, v1::CodesReply* reply) {
    v1::PutRequest request;
    request.set_if_absent(if_absent);
    *request.mutable_session() = session;
    request.mutable_keys()->set_blob("k");
    request.mutable_keys()->add_sizes(1);
    request.add_piece_counts(1);
    request.add_regions(region);
    request.add_offsets(offset);
    request.add_sizes(size);
    request.mutable_mark()->set_slot(3);
    request.mutable_mark()->set_sequence(9);
    grpc::ClientContext context;
    return stub_->Put(&context, request, reply);
  }
};

TEST_F(HostileTest, GarbageOnTheSocketClosesItAndIsCounted) {
  for (const size_t size : {1UL, 39UL, 40UL, 41UL, 4000UL}) {
    Descriptor socket = Connect();
    const std::string garbage(size, '\x5a');
    EXPECT_TRUE(client::SendPacket(socket.get(), BytesOf(garbage), -1).ok());
    char byte = 0;
    EXPECT_EQ(recv(socket.get(), &byte, 1, 0), 0) << size;
  }
  EXPECT_EQ(Count("dummy_refused_total", "malformed"), 5u);
}

TEST_F(HostileTest, DescriptorsThatComeWithGarbageAreClosed) {
  int before = 0;
  for (int fd = 0; fd < 1024; ++fd) before += fcntl(fd, F_GETFD) != -1;
  for (int i = 0; i < 20; ++i) {
    Descriptor socket = Connect();
    const std::string garbage(40, 'g');
    ASSERT_TRUE(client::SendPacket(socket.get(), BytesOf(garbage), 0).ok());
    char byte = 0;
    EXPECT_EQ(recv(socket.get(), &byte, 1, 0), 0);
  }
  Connect();  // Lets the daemon reap the others.
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  int after = before + 1;
  while (after > before + 2 && std::chrono::steady_clock::now() < limit) {
    after = 0;
    for (int fd = 0; fd < 1024; ++fd) after += fcntl(fd, F_GETFD) != -1;
  }
  EXPECT_LE(after, before + 2);
}

TEST_F(HostileTest, AnotherVersionIsRefusedByName) {
  grpc::ClientContext context;
  v1::HelloRequest request;
  request.set_version(client::kDaemonProtocolVersion + 1);
  request.set_scope("worker-1");
  v1::HelloReply reply;
  ASSERT_TRUE(stub_->Hello(&context, request, &reply).ok());
  EXPECT_EQ(reply.code(), static_cast<int32_t>(ErrorCode::kUnsupported));
  const std::string ours = std::to_string(client::kDaemonProtocolVersion);
  EXPECT_TRUE(reply.error().ends_with("this daemon speaks " + ours)) << reply.error();
  EXPECT_EQ(reply.session().high(), 0u);
}

TEST_F(HostileTest, AForeignSessionIsRefused) {
  v1::Session forged;
  forged.set_high(1);
  forged.set_low(2);
  Descriptor socket = Connect();
  EXPECT_NE(Ask(socket, MessageOf(SideType::kAttach, forged, 0, client::kControlBytes), -1), 0);
  // Half of an id is not enough, and a session is attached once.
  const v1::Session session = Hello();
  v1::Session half = session;
  half.set_low(session.low() + 1);
  Descriptor other = Connect();
  EXPECT_NE(Ask(other, MessageOf(SideType::kAttach, half, 0, client::kControlBytes), -1), 0);
  Descriptor mine = Attached(session);
  Descriptor twice = Connect();
  EXPECT_NE(
      Ask(twice, MessageOf(SideType::kAttach, session, 0, client::kControlBytes), control_->fd()),
      0);
  // A connection speaks for its own session only.
  EXPECT_EQ(Ask(mine, MessageOf(SideType::kUnregister, Hello(), 1, 0), -1), std::nullopt);
  grpc::ClientContext context;
  v1::KeysRequest request;
  *request.mutable_session() = forged;
  v1::CodesReply reply;
  EXPECT_EQ(stub_->Exist(&context, request, &reply).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_GE(Count("dummy_refused_total", "attach"), 3u);
  EXPECT_GE(Count("dummy_refused_total", "session"), 1u);
}

TEST_F(HostileTest, ShortOrUnsealedDescriptorsAreRefused) {
  const v1::Session session = Hello();
  Descriptor socket = Attached(session);
  Descriptor unsealed(memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 8192), 0);
  EXPECT_NE(Ask(socket, MessageOf(SideType::kRegister, session, 1, 4096), unsealed.get()), 0);
  EXPECT_NE(Ask(socket, MessageOf(SideType::kRegister, session, 1, 4096), -1), 0);
  EXPECT_NE(Ask(socket, MessageOf(SideType::kRegister, session, 1, 4096), socket.get()), 0);
  auto memory = MappedMemory::MapShared(4096, 0, false);
  ASSERT_TRUE(memory.ok());
  EXPECT_NE(Ask(socket, MessageOf(SideType::kRegister, session, 1, 1 << 20), memory->fd()), 0);
  EXPECT_NE(Ask(socket, MessageOf(SideType::kRegister, session, 1, 0), memory->fd()), 0);
  EXPECT_NE(Ask(socket, MessageOf(SideType::kRegister, session, 0, 4096), memory->fd()), 0);
  EXPECT_EQ(Ask(socket, MessageOf(SideType::kRegister, session, 1, 4096), memory->fd()), 0);
  EXPECT_EQ(Ask(socket, MessageOf(SideType::kUnregister, session, 2, 0), -1),
            static_cast<int>(ErrorCode::kNotFound));
  EXPECT_EQ(Ask(socket, MessageOf(static_cast<SideType>(77), session, 2, 0), -1),
            static_cast<int>(ErrorCode::kInvalidArgument));
  EXPECT_NE(Ask(socket, MessageOf(SideType::kArea, session, 1ULL << 40, 0), -1), 0);
  EXPECT_GE(Count("dummy_refused_total", "register"), 8u);
}

TEST_F(HostileTest, ForgedRegionsAndRangesReachNothing) {
  const v1::Session session = Hello();
  Descriptor socket = Attached(session);
  auto memory = MappedMemory::MapShared(4096, 0, false);
  ASSERT_EQ(Ask(socket, MessageOf(SideType::kRegister, session, 1, 4096), memory->fd()), 0);
  // Another client's region has the same number space, but not the same table.
  auto victim = Client();
  const MutableBytes theirs = memory_.Alloc(8192);
  ASSERT_TRUE(victim->RegisterBuffer(theirs.data(), 8192).ok());
  v1::CodesReply reply;
  const struct {
    uint64_t region, offset, size;
  } forged[] = {{2, 0, 10},    {1, 4096, 1}, {1, 0, 4097},       {1, ~0ULL, 2},
                {1, 1, ~0ULL}, {0, 0, 1},    {1ULL << 63, 0, 10}};
  for (const auto& piece : forged) {
    ASSERT_TRUE(PutFrom(session, piece.region, piece.offset, piece.size, &reply).ok());
    ASSERT_EQ(reply.codes_size(), 1);
    EXPECT_EQ(reply.codes(0), static_cast<int>(ErrorCode::kInvalidArgument));
  }
  EXPECT_EQ(victim->Get("k").code(), ErrorCode::kNotFound);
  EXPECT_EQ(Count("dummy_refused_total", "region"), 7u);
  ASSERT_TRUE(PutFrom(session, 1, 1000, 96, &reply).ok());
  EXPECT_EQ(reply.codes(0), 0);
  EXPECT_EQ(victim->Get("k").value_or(""), std::string(96, '\0'));
}

TEST_F(HostileTest, APutThatIsGivenUpTakesNothingOfOthersAway) {
  const v1::Session session = Hello();
  Descriptor socket = Attached(session);
  auto memory = MappedMemory::MapShared(4096, 0, false);
  ASSERT_EQ(Ask(socket, MessageOf(SideType::kRegister, session, 1, 4096), memory->fd()), 0);
  auto other = Client();
  ASSERT_TRUE(other->Put("k", BytesOf("theirs")).ok());
  // Its mark is gone from the control page all along.
  for (const bool if_absent : {true, false}) {
    v1::CodesReply reply;
    ASSERT_TRUE(SendPut(session, 1, 0, 96, if_absent, &reply).ok());
    EXPECT_EQ(other->Get("k").value_or(""), "theirs") << if_absent;
  }
}

TEST_F(HostileTest, MalformedCallsAreRefused) {
  const v1::Session session = Hello();
  Descriptor socket = Attached(session);
  const auto code_of = [&](const v1::PutRequest& request) {
    grpc::ClientContext context;
    v1::CodesReply reply;
    return stub_->Put(&context, request, &reply).error_code();
  };
  v1::PutRequest request;
  *request.mutable_session() = session;
  request.mutable_keys()->set_blob("abc");
  request.mutable_keys()->add_sizes(4);
  EXPECT_EQ(code_of(request), grpc::StatusCode::INVALID_ARGUMENT);
  request.mutable_keys()->set_sizes(0, 3);
  EXPECT_EQ(code_of(request), grpc::StatusCode::INVALID_ARGUMENT);
  request.add_piece_counts(2);
  EXPECT_EQ(code_of(request), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_piece_counts(0, 4'000'000'000U);
  EXPECT_EQ(code_of(request), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_piece_counts(0, 1);
  request.add_regions(1);
  request.add_offsets(0);
  request.add_sizes(1);
  // No mark: the daemon could not tell when to stop reading.
  request.mutable_mark()->set_slot(1 << 20);
  EXPECT_EQ(code_of(request), grpc::StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext context;
  v1::AcquireRequest acquire;
  *acquire.mutable_session() = session;
  acquire.mutable_keys()->set_blob("k");
  acquire.mutable_keys()->add_sizes(1);
  v1::AcquireReply reply;
  EXPECT_EQ(stub_->Acquire(&context, acquire, &reply).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_GE(Count("dummy_refused_total", "call"), 6u);
}

TEST_F(HostileTest, ADeadClientLeavesNothing) {
  auto survivor = Client();
  const MutableBytes kept = memory_.Alloc(4096);
  ASSERT_TRUE(survivor->RegisterBuffer(kept.data(), 4096).ok());
  {
    const v1::Session session = Hello();
    Descriptor socket = Attached(session);
    auto memory = MappedMemory::MapShared(4096, 0, false);
    ASSERT_EQ(Ask(socket, MessageOf(SideType::kRegister, session, 1, 4096), memory->fd()), 0);
    ASSERT_TRUE(survivor->Put("big", BytesOf(std::string(100'000, 'b'))).ok());
    grpc::ClientContext context;
    v1::AcquireRequest acquire;
    *acquire.mutable_session() = session;
    acquire.mutable_keys()->set_blob("big");
    acquire.mutable_keys()->add_sizes(3);
    acquire.add_limits(1 << 20);
    acquire.mutable_mark()->set_slot(2);
    acquire.mutable_mark()->set_sequence(5);
    reinterpret_cast<uint32_t*>(control_->bytes().data())[2] = 5;
    v1::AcquireReply reply;
    ASSERT_TRUE(stub_->Acquire(&context, acquire, &reply).ok());
    EXPECT_NE(reply.areas(0), 0u);
    EXPECT_EQ(Count("dummy_regions", "default"), 3u);  // One is the survivor's staging.
    EXPECT_EQ(Count("dummy_leases", "default"), 1u);
  }
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (daemon_->sessions().count() > 1 && std::chrono::steady_clock::now() < limit) {
  }
  EXPECT_EQ(Count("dummy_regions", "default"), 2u);
  EXPECT_EQ(Count("dummy_leases", "default"), 0u);
  EXPECT_TRUE(survivor->Put("k", kept).ok());
}

// What a daemon says of a place that the client has not used yet.
TEST_F(HostileTest, APlaceOutsideOfTheMemoryIsNotRead) {
  const std::string value(1 << 20, 'v');  // Places of less are not noted.
  ASSERT_TRUE(daemon_->store().Put("k", BytesOf(value)).ok());
  runtime::RealRuntime runtime;
  auto link = client::Link::Connect(ClientConfig(), runtime);
  ASSERT_TRUE(link.ok());
  client::PlaceHints hints;
  std::string target(value.size(), '\0');
  const MutableBytes bytes = std::as_writable_bytes(std::span(target));
  const std::string_view key = "k";
  client::GetWanted wanted;
  wanted.keys = {&key, 1};
  wanted.limits = {value.size()};
  wanted.targets = [&](size_t, uint64_t) { return std::span(&bytes, 1); };
  const auto get = [&] {
    std::fill(target.begin(), target.end(), '\0');
    client::DummyGet get(**link, runtime, hints, wanted, "");
    EXPECT_EQ(get.Run()[0].value_or(0), value.size());
    EXPECT_EQ(target, value);
  };
  get();
  const uint64_t hash = client::PlaceHints::KeyOf("", key);
  const client::PlaceHints::Hint good = hints.Find({&hash, 1})[0];
  ASSERT_EQ(good.key, hash);
  for (const uint64_t offset : {good.offset + (1ULL << 40), ~0ULL, ~0ULL - value.size() + 1}) {
    client::PlaceHints::Hint forged = good;
    forged.offset = offset;
    hints.Note({&forged, 1});
    get();
  }
}

// As a process that stands still leaves it.
TEST(UnixSocket, AFullBacklogIsWaitedForWithALimit) {
  const std::string folder = testing::TempDir() + "mc-backlog-" + std::to_string(getpid());
  ASSERT_TRUE(client::MakeSocketFolder(folder).ok());
  std::string path = client::SocketPath(folder, "address", "scope");
  auto listener = client::ListenAt(&path);
  ASSERT_TRUE(listener.ok());
  ASSERT_EQ(listen(listener->get(), 0), 0);
  std::vector<Descriptor> waiting;
  while (waiting.size() < 10) {
    auto socket = client::ConnectTo(path, 50);
    if (!socket.ok()) {
      EXPECT_EQ(socket.code(), ErrorCode::kBackPressure) << socket.error().ToString();
      break;
    }
    waiting.push_back(*std::move(socket));
  }
  EXPECT_LT(waiting.size(), 10u);
  client::CallPool pool;
  pool.Open({path, 1, 2});
  EXPECT_EQ(pool.Take(client::CallPool::Caller::kWaits, 100), nullptr);
  EXPECT_EQ(pool.Take(client::CallPool::Caller::kWaits, 0), nullptr);
  // Another daemon takes no socket that is served, however slowly.
  std::string other = path;
  EXPECT_TRUE(client::ListenAt(&other).ok());
  EXPECT_EQ(other, path + ".1");
  unlink(other.c_str());
  unlink(path.c_str());
  rmdir(folder.c_str());
}

TEST(SocketFolder, MustBelongToThisUserAlone) {
  const std::string folder = testing::TempDir() + "mc-folder-" + std::to_string(getpid());
  ASSERT_TRUE(client::MakeSocketFolder(folder).ok());
  EXPECT_TRUE(client::MakeSocketFolder(folder).ok());
  ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
  EXPECT_EQ(client::MakeSocketFolder(folder).code(), ErrorCode::kInvalidState);
  ASSERT_EQ(chmod(folder.c_str(), 0700), 0);
  std::string path = client::SocketPath(folder, "0.0.0.0:16590", std::string(5000, 's'));
  EXPECT_LT(path.size() - folder.size(), 32u);
  // A stale file is replaced; a socket in use is left alone.
  Descriptor stale(open(path.c_str(), O_CREAT | O_WRONLY, 0600));
  std::string first = path;
  auto one = client::ListenAt(&first);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(first, path);
  std::string second = path;
  auto two = client::ListenAt(&second);
  ASSERT_TRUE(two.ok());
  EXPECT_NE(second, path);
  unlink(first.c_str());
  unlink(second.c_str());
  rmdir(folder.c_str());
}

}  // namespace
}  // namespace mooncake::daemon
