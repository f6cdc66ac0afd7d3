// What an authority does besides keeping its table: one place for the steps that follow a
// change, whether it was asked for by a peer or by this node's own caller.
#pragma once

#include "node/core.h"

namespace mooncake::node {

// Publishes, makes our own extent live, tells the other owners and the mirror, and gives back
// what was replaced. On any code but kItemOk nothing is published and the publication's
// extents stay reserved: the caller gives them back. `charge` as in RouteTable::Publish. `in_use`
// (unless null): whether the route has the publication's replicas now, and not those of a value
// that was there (if_absent).
ItemCode PublishRoute(Core& core, const KeyRef& ref, Publication publication, Version* version,
                      Charge* charge = nullptr, bool* in_use = nullptr);

// Removes the route and gives its replicas back.
ItemCode RemoveRoute(Core& core, const KeyRef& ref, uint64_t revision = kNewest);

// Takes one replica out of the key's route, and the route with its last one. Codes as of
// RouteTable::Check.
ItemCode DropReplica(Core& core, const KeyRef& ref, const Place& replica, Version* version);

// Takes a value of a tenant out of use to make room for others of it. False: it is gone already.
bool EvictAged(Core& core, const TenantAccount& account, const Age& age);

// Removes all routes of a scope that this node serves; returns how many.
uint64_t RemoveScopeRoutes(Core& core, ScopeIndex scope);
// The same; adds how many. Returns the revision of the view by which this node served all of its
// slots from the beginning to the end; 0: there was none, so routes may have been left out.
uint64_t RemoveScopeHere(Core& core, ScopeIndex scope, uint64_t* removed);

// Turns a route from the wire into a publication: finds our own extent among the replicas.
// nullopt: it names an extent of ours that does not exist or belongs to another key.
std::optional<Publication> PublicationOf(Core& core, const KeyRef& ref, const Route& route);

}  // namespace mooncake::node
