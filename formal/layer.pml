/* The life of a layer: slots, acknowledgements, verdict, poison, death, recovery. README.md says which step is which
 * function. One step has at most one store or compare-and-swap that another process can see; looks that may be merged
 * without loss are merged, and say why.
 *
 * Sizes: R ranks, S slots, P pieces, E epochs. CANCEL: each bit a rank that cancels, CANCELS times each. FAIL: each bit
 * a rank in which something fails. DEATH: each bit a rank that may die; ZOMBIE: it goes on for a while before. MUTANT
 * breaks one thing; spin must find it.
 */

#include "region.pml"

/* A rank's consumer and its device. A copy lands when the consumer sees that it has: nobody can tell that it did
 * earlier, and the later, the longer must its slot be left alone. */
proctype Consumer(byte g; byte me) {
  byte e, s, seq;
  byte taken[S];
  {
    true;
loop:
    if
    :: atomic { job[N(g, me)] != 0 && !closing[N(g, me)] ->
         e = job[N(g, me)]; submitted[N(g, me)] = 0; landed[N(g, me)] = 0; right[N(g, me)] = 0 }
    :: atomic { closing[N(g, me)] -> goto out }
    fi;
#if MUTANT != NO_PASS_OVER
    do /* pass_over */
    :: atomic { s < S && (ready_seq[L(g, s)] == 0 || ready_epoch[L(g, s)] >= e) -> s++ }
    :: atomic { s < S && ready_seq[L(g, s)] != 0 && ready_epoch[L(g, s)] < e ->
         seq = ready_seq[L(g, s)]; taken[s] = seq };
       atomic {
         if
         :: ack[A(g, me, s)] < seq -> ack[A(g, me, s)] = seq
         :: else
         fi;
         seq = 0; s++ }
    :: atomic { s == S -> s = 0; break }
    od;
#endif
    do
    :: atomic { broken(g, e) || closing[N(g, me)] -> break }
    :: atomic { landed[N(g, me)] == P -> break }
    :: atomic { landed[N(g, me)] < submitted[N(g, me)] -> land(g, me, e);
         s = (landed[N(g, me)] - 1) % S;
#if MUTANT != DONE_AFTER_ACK
         if
         :: landed[N(g, me)] == P -> done_epoch[Q(g, me)] = e /* complete */
         :: else
         fi
#endif
       };
#if MUTANT == ACK_EARLY
       atomic { s = 0 }
#elif MUTANT == DONE_AFTER_ACK
       ack[A(g, me, s)] = taken[s];
       atomic { s = 0;
         if
         :: landed[N(g, me)] == P -> done_epoch[Q(g, me)] = e
         :: else
         fi }
#else
       atomic { ack[A(g, me, s)] = taken[s]; s = 0 }
#endif
       /* is_ready: the cells are this rank's to read until it acknowledges, so one look at all of them will do */
    :: atomic { submitted[N(g, me)] < P && submitted[N(g, me)] - landed[N(g, me)] < S &&
         ready_seq[L(g, submitted[N(g, me)] % S)] > taken[submitted[N(g, me)] % S] &&
         ready_epoch[L(g, submitted[N(g, me)] % S)] >= e ->
         s = submitted[N(g, me)] % S;
         /* else it refuses: "expected piece 1 of epoch 2, found piece 0 of epoch 1" */
         assert(!lives(g, me) || (ready_epoch[L(g, s)] == e && ready_number[L(g, s)] == submitted[N(g, me)]));
         taken[s] = ready_seq[L(g, s)];
#if MUTANT == ACK_EARLY
         ack[A(g, me, s)] = taken[s];
#endif
         submitted[N(g, me)]++; s = 0 }
    od;
#if MUTANT == NO_DRAIN
    atomic { job[N(g, me)] = 0 };
#endif
    do /* drain */
    :: atomic { landed[N(g, me)] < submitted[N(g, me)] -> land(g, me, e) }
    :: atomic { landed[N(g, me)] == submitted[N(g, me)] -> job[N(g, me)] = 0; goto loop }
    od;
out:
    gone[N(g, me)] = 1
  } MORTAL
}

/* join of rank 0. */
inline lead() {
#if CANCEL && MUTANT != WISH_PASSED
  do /* what was given up and is not joined here: another rank may be waiting for it */
  :: atomic { g == 0 && i < E && !(i > current[0] && i < e && anybody_wishes(i)) -> i++ }
  :: atomic { g == 0 && i < E && i > current[0] && i < e && anybody_wishes(i) -> skip };
     if
     :: atomic { all_returned(g, current[0]) -> skip }
     :: atomic { poison[0] != 0 -> i = 0; goto failed }
     fi;
     verdict[0] = V(i, CANCELLED);
     current[0] = i;
     atomic { returned[Q(g, me)] = i; i = 0 }
  :: atomic { g != 0 || i == E -> i = 0; break }
  od;
#endif
  if
#if MUTANT == NO_RETURN_WAIT
  :: true
#else
  :: atomic { all_returned(g, current[region(g)]) -> skip }
  :: atomic { poison[region(g)] != 0 -> goto failed }
#endif
  fi;
  verdict[region(g)] = V(e, OPEN);
  current[region(g)] = e;
#if CANCEL && MUTANT != WISH_UNREAD
  do /* who gave it up before it was published has left a wish */
  :: atomic { g == 0 && i < R ->
       if
       :: wishes(i, e) && verdict[0] == V(e, OPEN) -> verdict[0] = V(e, CANCELLED)
       :: else
       fi;
       i++ }
  :: atomic { g != 0 || i == R -> i = 0; break }
  od
#endif
}

/* join of another rank. Without a cancel it has never anything to skip. */
inline follow() {
#if CANCEL
  do
  :: atomic { current[region(g)] == e -> break }
  :: atomic { current[region(g)] != e -> seen = current[region(g)];
       assert(!lives(g, me) || seen < e) }; /* else it poisons: "rank 1 joined epoch 1, rank 0 is in epoch 2" */
     if
     :: atomic { seen > joined && NOT_LEFT -> open = anybody_wishes(seen) }; /* wished */
        if
        :: atomic { verdict[region(g)] == V(seen, CANCELLED) || verdict[region(g)] == V(seen, DONE) ->
             returned[Q(g, me)] = seen; seen = 0; open = 0; goto look_again }
        :: atomic { verdict[region(g)] == V(seen, FAILED) -> seen = 0; open = 0; goto failed }
        :: atomic { verdict[region(g)] == V(seen, OPEN) -> /* else it poisons: "joined epoch 2, rank 0 is in epoch 1" */
             assert(!lives(g, me) || open);
             open = 0 };
#if MUTANT != NO_HELP
           atomic { /* compare-and-swap: it is given up, whoever is about to say so */
             if
             :: verdict[region(g)] == V(seen, OPEN) -> verdict[region(g)] = V(seen, CANCELLED)
             :: else
             fi;
             seen = 0; goto look_again }
#endif
        :: atomic { else -> assert(!lives(g, me)); seen = 0; open = 0; goto failed } /* of another epoch: never */
        fi
     :: atomic { !(seen > joined && NOT_LEFT) -> skip }
     fi;
     if
     :: atomic { current[region(g)] != seen -> seen = 0 }
     :: atomic { poison[region(g)] != 0 -> seen = 0; goto failed }
     fi;
look_again:
     skip
  od
#else
  if
  :: atomic { current[region(g)] >= e -> skip }
  :: atomic { poison[region(g)] != 0 -> goto failed }
  fi
#endif
}

/* A rank's caller: join, run (rank 0), wait; recover. */
proctype Rank(byte g; byte me) {
  byte e, p, s, i, seq, seen, joined, epochs;
  bit open;
  {
    true;
again:
    atomic {
      e = 1; seq = 0; joined = 0; s = 0; seen = 0; open = 0; i = 0;
      epochs = (g == 0 -> E : E2);
      run Consumer(g, me)
    };
    do
    :: atomic { e > epochs -> break }
#if CANCEL
       /* it never entered a layer that it knows to be given up: it goes on to the next */
    :: atomic { g == 0 && e < epochs && granted[e] && (me != 0 || current[0] < e) -> e++ }
#endif
    :: atomic { e <= epochs -> skip };
       if
       :: me == 0 -> lead()
       :: else -> follow()
       fi;
       /* begin; a consumer that is past its last acknowledgement ends by itself */
       atomic { job[N(g, me)] == 0 ->
         
#if CANCEL
         joined = e;
#endif
         job[N(g, me)] = e };
       if
       :: me == 0 -> /* run */
          p = 0;
          do
#if DEATH
          :: atomic { p < P && all_acked(g, p % S) && !broken(g, e) -> skip };
             atomic { fill(g, e, p) };
#else
          :: atomic { p < P && all_acked(g, p % S) && !broken(g, e) -> fill(g, e, p) };
#endif
             if
             :: atomic { broken(g, e) -> goto ending }
#if MUTANT == READY_FIRST
             :: atomic { !broken(g, e) -> seq++; ready_seq[L(g, p % S)] = seq };
                atomic { ready_epoch[L(g, p % S)] = e; ready_number[L(g, p % S)] = p; p++ }
#else
             :: atomic { !broken(g, e) -> ready_epoch[L(g, p % S)] = e; ready_number[L(g, p % S)] = p };
                atomic { seq++; ready_seq[L(g, p % S)] = seq; p++ }
#endif
             fi
          :: atomic { p == P && all_acked(g, 0) && all_acked(g, S - 1) -> p = 0; break }
          :: atomic { broken(g, e) -> goto ending }
          od;
          /* close_layer */
#if MUTANT == VERDICT_STORED
          if
          :: verdict[region(g)] == V(e, OPEN) -> verdict[region(g)] = V(e, DONE)
#else
          if
          :: atomic { verdict[region(g)] == V(e, OPEN) -> verdict[region(g)] = V(e, DONE) }
#endif
          :: atomic { verdict[region(g)] != V(e, OPEN) -> assert(verdict[region(g)] != V(e, DONE)); goto ending }
          fi;
          producer_done[region(g)] = e
       :: else
       fi;
ending:
       /* wait; the producer's errors end as its own do. Its looks are here in any order, not done before poison. */
       if
       :: atomic { is_done(g, me, e) -> succeed(g, me, e) }
       :: atomic { poison[region(g)] != 0 -> p = 0;
#if MUTANT == LOOK_ONCE
            assert(!lives(g, me) || outcome[g * (E + 1) + e] != DONE);
            goto failed
#else
            if
            :: verdict[region(g)] == V(e, DONE) ->
               assert(!lives(g, me) || done_epoch[Q(g, me)] >= e); /* a complete layer stays complete */
               succeed(g, me, e)
            :: verdict[region(g)] == V(e, OPEN) -> verdict[region(g)] = V(e, FAILED); goto failed
            :: else -> goto failed
            fi
#endif
          }
       :: atomic { poison[region(g)] == 0 && is_cancelled(g, e) -> p = 0; note(g, e, CANCELLED) };
          atomic { job[N(g, me)] == 0 -> /* give_up: nothing of it moves any more */
            assert(landed[N(g, me)] == submitted[N(g, me)]) }
       fi;
       atomic { returned[Q(g, me)] = e; e++ }
    od;
    /* all epochs done; whoever is told of a failure by its next call recovers with the others */
    if
    :: g == 0 && G == 2 ->
       atomic { ended++;
         if
         :: ended == R && poison[0] == 0 && victim == NOBODY -> over = 1
         :: else
         fi };
       if
       :: over
       :: atomic { poison[0] != 0 && !over -> goto failed }
       fi
    :: else
    fi;
    goto out;
failed:
    assert(g == 0 || !lives(1, me)); /* nothing fails in the new generation */
    raise(g);
    atomic { p = 0; s = 0; i = 0; seen = 0; open = 0; seq = 0; closing[N(g, me)] = 1 };
    atomic { gone[N(g, me)] -> skip };
#if G == 2
#if MUTANT != ZOMBIE_SEAT
    if
    :: victim == me -> goto out /* its seat has been taken */
    :: else
    fi;
#endif
    goto join_next;
out:
    atomic { closing[N(g, me)] = 1 };
    gone[N(g, me)] -> goto end_of_it;
join_next:
    atomic { g = 1 }; /* the old generation is left: its region is nobody's */
    if
    :: me == 0 -> atomic {
#if MUTANT == SAME_REGION
         current[0] = 0; verdict[0] = 0; poison[0] = 0; cause[0] = NOBODY; producer_done[0] = 0;
         i = 0;
         do
         :: i < S -> ready_seq[i] = 0; ready_epoch[i] = 0; ready_number[i] = 0; i++
         :: else -> break
         od;
         i = 0;
         do
         :: i < R * S -> ack[i] = 0; i++
         :: else -> break
         od;
         i = 0;
         do
         :: i < R -> done_epoch[i] = 0; returned[i] = 0; i++
         :: else -> i = 0; break
         od;
#endif
         created[1] = 1 }
    :: else -> created[1]
    fi;
    goto again;
#else
    goto end_of_it;
out:
    atomic { closing[N(g, me)] = 1 };
    gone[N(g, me)];
#endif
end_of_it:
    atomic { finished[g * R + me] = 1 }
  } MORTAL
}

#if DEATH
/* The process that takes the dead one's seat: a new rank 0 makes the new region, another one waits for it. */
proctype Successor(byte me) {
  if
  :: me == 0 -> created[1] = 1
  :: else -> created[1]
  fi;
  run Rank(1, me)
}

/* Somebody dies, once, at any moment; it is a zombie first, for as long as it likes. */
proctype Fate() {
  byte who = 0;
  do
  :: who < R && !over && ((DEATH >> who) & 1) ->
     atomic {
       if
#if ZOMBIE
       :: !over -> victim = who; run Successor(who)
#else
       :: !over -> victim = who; killed = 1; run Successor(who)
#endif
       :: else -> goto lucky
       fi };
     killed = 1;
     break
  :: who < R -> who++
  :: else -> break
  od;
lucky:
  skip
}

/* Liveness of each rank: the kernel says that a peer is gone. The dying rank may itself be about to fail. */
proctype Watch(byte me) {
  {
    if
    :: victim != NOBODY ->
       if
#if MUTANT != DEATH_UNSEEN
       :: victim != me && !gone[N(0, me)] -> fail(0, victim)
       :: gone[N(0, me)]
#else
       :: victim != me
#endif
       :: victim == me -> fail(0, me)
       :: victim == me
       fi
    :: over
    fi
  } A_THREAD_MORTAL
}
#endif

#if FAIL
/* A writer, a device, a limit: something fails in this rank, at any moment, or not. */
proctype Failure(byte me) {
  if
  :: atomic { !over && !gone[N(0, me)] -> skip }; fail(0, me)
  :: true
  fi
}
#endif

#if CANCEL
/* Any rank, any thread, any epoch, any moment. */
proctype Cancel(byte me) {
  byte e, times;
  {
    do
    :: times < CANCELS ->
       times++;
       if
       :: e = 1
       :: E > 1 -> e = E
       :: goto out
       fi;
       if
       :: atomic { current[0] < e -> skip };
          atomic {
#if MUTANT == WISH_SINGLE
            wish[me] = e
#else
            wish[me] = wish[me] | (1 << e)
#endif
          }
       :: atomic { current[0] >= e -> skip }
       fi;
       if
       :: atomic { current[0] < e -> granted[e] = 1; assert(outcome[e] != DONE) }
       :: atomic { current[0] >= e -> skip };
#if MUTANT == VERDICT_STORED
          if
          :: verdict[0] == V(e, OPEN) ->
             atomic { verdict[0] = V(e, CANCELLED); granted[e] = 1; assert(outcome[e] != DONE) }
          :: else
          fi
#else
          atomic {
            if
            :: verdict[0] == V(e, OPEN) -> verdict[0] = V(e, CANCELLED); granted[e] = 1; assert(outcome[e] != DONE)
            :: else
            fi
          }
#endif
       fi
    :: else -> break
    od;
out:
    skip
  } A_THREAD_MORTAL
}
#endif

init {
  atomic {
    byte r = 0;
    created[0] = 1;
    do
    :: r < R ->
       run Rank(0, r);
#if DEATH
       run Watch(r);
#endif
#if CANCEL
       if
       :: (CANCEL >> r) & 1 -> run Cancel(r)
       :: else
       fi;
#endif
#if FAIL
       if
       :: (FAIL >> r) & 1 -> run Failure(r)
       :: else
       fi;
#endif
       r++
    :: else -> r = 0; break
    od;
#if DEATH
    run Fate()
#endif
  }
}

#ifdef ENDS
/* Every rank's caller comes to its end, in one generation or the other, or its process dies. */
#define ended_or_dead(r) (finished[r] || finished[R + (r)] || (killed && victim == (r)))
#if R == 2
ltl ends { <> (ended_or_dead(0) && ended_or_dead(1)) }
#else
ltl ends { <> (ended_or_dead(0) && ended_or_dead(1) && ended_or_dead(2)) }
#endif
#endif
