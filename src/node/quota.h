// Quotas: whether a tenant may grow. Asked by the authority of a key before anything is reserved or
// evicted for it, and by writers that place copies first (ReserveQuota). Docs: ADR 18.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "node/core.h"
#include "node/quota_ledger.h"
#include "node/tenant_meter.h"
#include "node/wire.h"

namespace mooncake::node {

// Of one request, for all of its items.
struct Admission {
  bool may_block = false;  // Else `would_block` is set where the ledger has to be asked.
  bool patient = false;    // Waits while views change, instead of answering kItemRetryLater.
  uint64_t deadline_ms = 0;
  Load ahead;  // What later items may need, asked for at the same time.

  bool would_block = false;
  ItemCode asked = kItemRetryLater;  // kItemOk: the ledger has no more to give.
  uint64_t waits_until_ms = 0;       // Since the last item that was admitted; 0: none has waited.
  uint64_t wait_ms = 0;              // Next time.
};

struct AdmissionItem {
  KeyRef ref;
  uint64_t size = 0;
  size_t copies = 1;
  bool if_absent = false;
};

// Admits a value at this node, its key's authority, and fills `charge` for the publication; it
// stays empty where the tenant has no quota. kItemOk; CodeOf(kConflict): over the quota;
// CodeOf(kTransport): those who know could not be asked; kItemRetryLater: not now. After
// `would_block` was set nothing has happened.
ItemCode Admit(Core& core, const AdmissionItem& item, Admission& admission, Charge* charge);

// Whether the tenant of a scope has a quota.
inline bool HasQuota(Core& core, ScopeIndex scope) {
  if (!core.meter.any()) return false;
  const TenantAccount* account = core.meter.Find(scope);
  return account != nullptr && account->limit().has_value();
}

// The error of an item that was refused.
Error OverQuota(const KeyRef& ref, uint64_t size);

bool ServeQuotaCharge(Core& core, const v1::QuotaChargeRequest& request, bool may_block,
                      v1::QuotaChargeReply* reply, bool* valid);
void ServeQuotaGrant(Core& core, const v1::QuotaGrantRequest& request, v1::QuotaGrantReply* reply,
                     bool* valid);
bool ServeQuotaSurvey(Core& core, const v1::QuotaSurveyRequest& request, bool may_block,
                      v1::QuotaSurveyReply* reply, bool* valid);

}  // namespace mooncake::node
