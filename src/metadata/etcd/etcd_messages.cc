#include "metadata/etcd/etcd_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "mooncake/etcd.pb.h"

namespace mooncake::metadata {
namespace {

constexpr size_t kTokenBytesMax = size_t{8} << 10;

Error Malformed(std::string_view what) {
  return MetadataError(fmt::format("etcd gave a malformed answer: {}", what));
}

template <typename Message>
Result<Message> Parse(std::string_view reply) {
  Message message;
  const bool fits = reply.size() <= std::numeric_limits<int>::max();
  if (!fits || !message.ParseFromArray(reply.data(), static_cast<int>(reply.size()))) {
    return Malformed("unreadable");
  }
  return message;
}

// etcd's numbers are signed, and none that is used here is ever below zero.
int64_t Signed(uint64_t number) {
  return static_cast<int64_t>(std::min<uint64_t>(number, std::numeric_limits<int64_t>::max()));
}

void Fill(const EtcdRange& range, etcd::RangeRequest& request) {
  request.set_key(range.key);
  request.set_range_end(range.end);
  request.set_revision(Signed(range.revision));
  request.set_min_mod_revision(Signed(range.changed_since));
  if (range.oldest_max != 0) {
    request.set_limit(Signed(range.oldest_max));
    request.set_sort_order(etcd::RangeRequest::ASCEND);
    request.set_sort_target(etcd::RangeRequest::MOD);
  }
  request.set_keys_only(range.keys_only);
  request.set_count_only(range.count_only);
}

Status TakeKeys(etcd::RangeResponse& range, std::vector<EtcdKey>& keys) {
  keys.reserve(static_cast<size_t>(range.kvs_size()));
  for (etcd::KeyValue& item : *range.mutable_kvs()) {
    // A lease is any number, a revision counts.
    if (item.mod_revision() < 0) return Malformed("a key");
    keys.push_back({std::move(*item.mutable_key()), std::move(*item.mutable_value()),
                    static_cast<uint64_t>(item.mod_revision()),
                    static_cast<uint64_t>(item.lease())});
  }
  return Ok();
}

}  // namespace

std::string ReadRequest(std::span<const EtcdRange> ranges) {
  etcd::TxnRequest request;
  for (const EtcdRange& range : ranges)
    Fill(range, *request.add_success()->mutable_request_range());
  return request.SerializeAsString();
}

Result<EtcdRead> ReadFrom(std::string_view reply, size_t ranges) {
  MC_TRY(etcd::TxnResponse answer, Parse<etcd::TxnResponse>(reply));
  if (answer.header().revision() < 0) return Malformed("the header");
  EtcdRead read;
  read.revision = static_cast<uint64_t>(answer.header().revision());
  read.cluster = answer.header().cluster_id();
  if (static_cast<size_t>(answer.responses_size()) != ranges) return Malformed("responses");
  for (etcd::ResponseOp& response : *answer.mutable_responses()) {
    if (!response.has_response_range() || response.response_range().count() < 0) {
      return Malformed("a range");
    }
    EtcdRangeResult& result = read.ranges.emplace_back();
    result.count = static_cast<uint64_t>(response.response_range().count());
    MC_RETURN_IF_ERROR(TakeKeys(*response.mutable_response_range(), result.keys));
  }
  return read;
}

std::string CommitRequest(const EtcdCommit& commit) {
  etcd::TxnRequest request;
  for (const EtcdCommit::Expected& expected : commit.expected) {
    etcd::Compare& compare = *request.add_compare();
    compare.set_result(etcd::Compare::EQUAL);
    compare.set_target(etcd::Compare::MOD);
    compare.set_key(expected.key);
    compare.set_mod_revision(Signed(expected.written));
  }
  for (const EtcdKey& key : commit.puts) {
    etcd::PutRequest& put = *request.add_success()->mutable_request_put();
    put.set_key(key.key);
    put.set_value(key.value);
    put.set_lease(static_cast<int64_t>(key.lease));
  }
  for (const std::string& key : commit.erased) {
    request.add_success()->mutable_request_delete_range()->set_key(key);
  }
  return request.SerializeAsString();
}

Result<bool> CommitFrom(std::string_view reply) {
  MC_TRY(const etcd::TxnResponse answer, Parse<etcd::TxnResponse>(reply));
  return answer.succeeded();
}

std::string GrantRequest(uint64_t ttl_s) {
  etcd::LeaseGrantRequest request;
  request.set_ttl(Signed(ttl_s));
  return request.SerializeAsString();
}

Result<uint64_t> GrantFrom(std::string_view reply) {
  MC_TRY(const etcd::LeaseGrantResponse answer, Parse<etcd::LeaseGrantResponse>(reply));
  if (answer.id() == 0) return Malformed("a lease without an ID");
  return static_cast<uint64_t>(answer.id());
}

std::string KeepAliveRequest(uint64_t lease) {
  etcd::LeaseKeepAliveRequest request;
  request.set_id(static_cast<int64_t>(lease));
  return request.SerializeAsString();
}

Result<bool> KeepAliveFrom(std::string_view reply) {
  MC_TRY(const etcd::LeaseKeepAliveResponse answer, Parse<etcd::LeaseKeepAliveResponse>(reply));
  if (answer.id() == 0) return Malformed("a lease without an ID");
  return answer.ttl() > 0;
}

std::string LoginRequest(const std::string& username, const std::string& password) {
  etcd::AuthenticateRequest request;
  request.set_name(username);
  request.set_password(password);
  return request.SerializeAsString();
}

Result<std::string> LoginFrom(std::string_view reply) {
  MC_TRY(etcd::AuthenticateResponse answer, Parse<etcd::AuthenticateResponse>(reply));
  std::string& token = *answer.mutable_token();
  // It has to fit into a header.
  const auto printable = [](char c) { return c > ' ' && c <= '~'; };
  const bool usable =
      !token.empty() && token.size() <= kTokenBytesMax && std::ranges::all_of(token, printable);
  if (!usable) return Malformed("no token");
  return std::move(token);
}

}  // namespace mooncake::metadata
